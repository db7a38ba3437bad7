"""From fits to a verdict on stability: fits whose widths are known, made up and not trained."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fints.evaluation.predictions import TOO_NARROW
from fints.study import stability_report
from fints.study.document import Table
from fints.study.panel_design import PanelStudy
from fints.study.panel_store import Fits
from fints.study.stability import stable_cells
from fints.study.stability_claims import (
    OTHERWISE,
    Claim,
    Gate,
    claims_at,
    gates,
    mechanism,
    rivals_at,
)
from fints.study.stability_report import answer_stability, power_of_stability

FILE = Path(__file__).resolve().parents[2] / "studies" / "post_norm_variance.py"
DECLARED: PanelStudy = runpy.run_path(str(FILE))["STUDY"]
STUDY = DECLARED.sized("standard")
MIDDLE = math.log10(0.002)
# Gaps as the mechanism has them.
GAPS = {"garch_high": 0.6, "garch_low": 0.21, "gaussian": 0.0, "oracle_sigma": 0.0, "r2_0": 0.0}
Width = Callable[[str, str, str], float]


def mechanistic(scheme: str, case: str, depth: str) -> float:
    gains = scheme in ("post_norm", "window_rescaled_pre_norm")
    return 0.4 + (GAPS[case] if gains else 0.0)


def made_up(
    width: Width = mechanistic,
    *,
    best: dict[str, float] | None = None,
    moved: dict[str, float] | None = None,
    empty: float = 0.0,
    study: PanelStudy = STUDY,
    spread: float = 0.04,
) -> Fits:
    """Fits whose share falls on both sides of the rate 0.002, a tenth within half of the width."""
    table = []
    for arm in study.arms():
        scheme, case, depth = (arm.levels[name] for name in ("residual", "case", "depth"))
        rate = arm.experiment.training.learning_rate
        for panel in study.panels:
            shared = np.random.default_rng(panel).normal(0, 3 * spread)
            own = np.random.default_rng(
                [panel, *(ord(letter) for letter in f"{scheme}{case}{depth}")]
            ).normal(0, spread)
            decades = max(0.05, width(scheme, case, depth) + shared + own)
            top = (best or {}).get(scheme, 0.5)
            share = None if case == "r2_0" else top * (1 - 0.2 * abs(math.log10(rate) - MIDDLE) / decades)
            ratio = math.exp(own) * (moved or {"pre_norm": 0.8}).get(scheme, 0.4)
            table.append(
                {
                    "key": f"{arm.name}-{panel}",
                    "arm": arm.name,
                    "role": "final",
                    "panel": panel,
                    "seed": panel,
                    "outcome": "finished",
                    "point": "{}",
                    "validation_loss": 1.0 + abs(math.log10(rate) - MIDDLE),
                    "share_of_oracle": share,
                    "test_excess": 0.1,
                    "calibrated_excess": 0.01 * own + (empty if scheme == "post_norm" else 0.0),
                    "spikes_per_thousand": 1.0,
                    "worst_block_share": share,
                    "calm_share": share,
                    "volatile_share": share,
                    "forecast_variance_ratio": 0.4,
                    "input_share": 0.6,
                    "moved_at_0.25": ratio,
                    "moved_at_4": 3 * ratio,
                }
            )
    return Fits(table=pl.DataFrame(table, infer_schema_length=None), rows=pl.DataFrame(), missing=0)


def judged(fits: Fits, depth: str = "4", study: PanelStudy = STUDY) -> tuple[Gate, dict[str, Claim], str]:
    cells = stable_cells(study, fits)
    gate = next(one for one in gates(study, cells) if one.depth == depth)
    claims = claims_at(study, cells, depth)
    return gate, {claim.name: claim for claim in claims}, mechanism(gate, claims)


def test_a_mechanism_that_is_true_has_all_its_predictions_held() -> None:
    gate, claims, verdict = judged(made_up())
    assert gate.finding.decision == "more"
    assert gate.finding.estimate == pytest.approx(0.6, abs=0.06)
    # Panels make all cells wide or narrow at once: pairing takes that out.
    assert gate.finding.sd == pytest.approx(0.04 * math.sqrt(2), rel=0.8)
    assert {name: claim.finding.decision for name, claim in claims.items()} == dict.fromkeys(claims, "held")
    assert len(claims) == 7
    assert verdict == "supported"


def test_each_contrast_is_the_sum_of_widths_as_written() -> None:
    fits = made_up()
    cells = stable_cells(STUDY, fits)
    widths = {key: cell.widths() for key, cell in cells.items()}
    claims = {claim.name: claim for claim in claims_at(STUDY, cells, "4")}
    doses = {"gaussian": 0.0, "garch_low": 0.7, "garch_high": 2.0}
    for place, panel in enumerate(STUDY.panels):

        def at(scheme: str, case: str, panel: int = panel) -> float:
            return widths[scheme, case, "4"][panel]

        gap = {case: at("post_norm", case) - at("pre_norm", case) for case in (*doses, "oracle_sigma")}
        slope = np.polyfit(list(doses.values()), [gap[case] for case in doses], 1)[0]
        rescaled = at("window_rescaled_pre_norm", "garch_high") - at("pre_norm", "garch_high")
        restored = at("post_norm", "garch_high") - at("window_scale_restoring_post_norm", "garch_high")
        expected = {
            "dose": 2.0 * slope,
            "no volatility": gap["gaussian"],
            "oracle sigma": gap["oracle_sigma"],
            "re-scaled once": rescaled - gap["garch_high"] / 2,
            "scale restored": restored - gap["garch_high"] / 2,
        }
        for name, value in expected.items():
            assert claims[name].values[place] == pytest.approx(value, abs=1e-9), name
    moved = claims["do(c)"]
    chosen = {scheme: cells[scheme, "garch_high", "4"].chosen for scheme in ("pre_norm", "post_norm")}
    first = STUDY.panels[0]
    logs = [
        math.log(chosen["pre_norm"][first][name] / chosen["post_norm"][first][name])
        for name in ("moved_at_0.25", "moved_at_4")
    ]
    assert moved.values[0] == pytest.approx(sum(logs) / 2)
    # Each arm is read at the rate of its own lowest validation loss.
    assert {row["rate"] for rows in chosen.values() for row in rows.values()} == {0.002}


@pytest.mark.parametrize(
    ("name", "scheme", "decades"),
    [
        ("scale restored", "window_scale_restoring_post_norm", 1.0),
        ("re-scaled once", "window_rescaled_pre_norm", 0.4),
    ],
)
def test_a_cure_that_does_the_opposite_refutes(name: str, scheme: str, decades: float) -> None:
    def width(own: str, case: str, depth: str) -> float:
        return decades if own == scheme else mechanistic(own, case, depth)

    _, claims, verdict = judged(made_up(width))
    assert claims[name].finding.decision == "failed"
    assert verdict == "refuted"


def test_a_gap_that_does_not_need_volatility_refutes() -> None:
    def width(scheme: str, case: str, depth: str) -> float:
        return mechanistic(scheme, "garch_high", depth)

    gate, claims, verdict = judged(made_up(width))
    assert gate.finding.decision == "more"
    failed = {name for name, claim in claims.items() if claim.finding.decision == "failed"}
    assert failed == {"dose", "no volatility", "oracle sigma"}
    assert verdict == "refuted"


@pytest.mark.parametrize(("gap", "decision"), [(0.0, "same"), (-0.4, "less")])
def test_where_post_norm_is_no_more_stable_the_mechanism_is_void(gap: float, decision: str) -> None:
    def width(scheme: str, case: str, depth: str) -> float:
        return 0.8 + (gap if scheme == "post_norm" else 0.0)

    fits = made_up(width)
    gate, _, verdict = judged(fits)
    assert gate.finding.decision == decision
    assert verdict == "void"


def test_a_wide_range_around_a_worse_best_is_not_more_stable() -> None:
    gate, _, verdict = judged(made_up(best={"post_norm": 0.2}))
    assert gate.finding.estimate > 0.5
    assert all(value < 0 for value in gate.common)
    assert (gate.finding.decision, gate.finding.reason) == ("undecided", OTHERWISE["more"])
    assert verdict == "undecided"


def test_a_narrow_range_around_a_much_better_best_is_not_less_stable() -> None:
    def width(scheme: str, case: str, depth: str) -> float:
        return 0.5 if scheme == "post_norm" else 1.0

    fits = made_up(width, best={"pre_norm": 0.2})
    gate, _, _ = judged(fits)
    assert gate.finding.estimate < -0.4
    assert (gate.finding.decision, gate.finding.reason) == ("undecided", OTHERWISE["less"])
    # How well it ends is asked beside.
    cells = stable_cells(STUDY, fits)
    (better, _) = gates(STUDY, cells, "share")
    assert better.finding.decision == "more"
    assert better.finding.estimate == pytest.approx(0.3)


def test_the_predictions_are_read_of_the_share_too() -> None:
    gained = {"post_norm": 0.7, "window_rescaled_pre_norm": 0.7}
    calm = ("gaussian", "oracle_sigma")
    fits = made_up(lambda scheme, case, depth: 0.8, best=gained)
    noise = pl.Series(np.random.default_rng(5).normal(0, 0.01, fits.table.height))
    share = pl.col("share_of_oracle") + noise
    for case in calm:
        here = pl.col("arm").str.contains(case)
        share = pl.when(here & pl.col("arm").str.starts_with("post_norm")).then(share - 0.2).otherwise(share)
    low = pl.col("arm").str.starts_with("post_norm-garch_low")
    table = fits.table.with_columns(share_of_oracle=pl.when(low).then(share - 0.13).otherwise(share))
    cells = stable_cells(STUDY, replace(fits, table=table))
    claims = {claim.name: claim for claim in claims_at(STUDY, cells, "4", "share")}
    gate = gates(STUDY, cells, "share")[0]
    assert gate.finding.decision == "more"
    assert {claim.finding.decision for claim in claims.values()} == {"held"}
    assert claims["dose"].unit == "share"
    assert mechanism(gate, list(claims.values())) == "supported"
    # Of the widths, which are all alike, there is nothing to explain.
    assert mechanism(gates(STUDY, cells)[0], claims_at(STUDY, cells, "4")) == "void"


def test_ranges_that_the_grid_cuts_off_bar_what_they_could_overturn() -> None:
    def wide(scheme: str, case: str, depth: str) -> float:
        return 2.5 if scheme == "pre_norm" else 1.0

    gate, _, _ = judged(made_up(wide))
    # Pre-Norm's widths are lower bounds, so that Post-Norm is narrower stands.
    assert gate.finding.decision == "less"
    gate, _, _ = judged(made_up(lambda scheme, case, depth: 2.5))
    assert (gate.finding.decision, gate.finding.reason) == ("undecided", TOO_NARROW)


def test_a_difference_without_signal_is_seen_after_the_best_scalar_alone() -> None:
    _, claims, verdict = judged(made_up(empty=0.006))
    assert claims["no signal"].finding.decision == "failed"
    assert verdict == "refuted"


def test_a_panel_counts_only_with_all_its_rates() -> None:
    fits = made_up()
    lost = (pl.col("panel") == STUDY.panels[0]) & (pl.col("arm") == "post_norm-garch_high-depth_4-rate_0.004")
    gate, _, _ = judged(replace(fits, table=fits.table.filter(~lost)))
    assert len(gate.values) == len(STUDY.panels) - 1
    # Seven are too few for a verdict.
    assert gate.finding.decision == "undecided"
    assert gate.finding.more_clusters == 1


def test_a_fit_that_diverged_counts_as_the_zero_forecast_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability_report, "draw_stability", lambda *drawn: [])
    fits = made_up()
    high = pl.col("arm").str.ends_with("rate_0.016") & pl.col("arm").str.starts_with("pre_norm-garch_high")
    broken = fits.table.with_columns(
        outcome=pl.when(high).then(pl.lit("diverged")).otherwise("outcome"),
        share_of_oracle=pl.when(high).then(0.0).otherwise("share_of_oracle"),
    )
    made = replace(fits, table=broken)
    cells = stable_cells(STUDY, made)
    assert cells["pre_norm", "garch_high", "4"].failed() == pytest.approx(1 / 6)
    assert cells["post_norm", "garch_high", "4"].failed() == 0.0
    blocks = answer_stability(STUDY, made, tmp_path).blocks
    (table,) = (one for one in blocks if isinstance(one, Table) and "secondary" in one.columns)
    assert table.rows[0] == ("4", "share of diverged fits", "-0.17 [-0.17, -0.17]", "8")


def test_rivals_are_asked_where_their_cells_are() -> None:
    study = DECLARED.sized("noise")

    def width(scheme: str, case: str, depth: str) -> float:
        return 0.4 + (0.6 if scheme == "post_norm" and case != "student_t" else 0.0)

    found = {
        claim.name: claim.finding.decision
        for claim in rivals_at(study, stable_cells(study, made_up(width, study=study)), "4")
    }
    assert found == {
        "student_t": "held",
        "conditional": "held",
        "shock": "failed",
        "shrinkage": "held",
        "volatile windows": "failed",
    }


def test_the_spread_over_seeds_is_within_panels() -> None:
    study = DECLARED.sized("seeds")
    fits = made_up(study=study)
    moved = [
        fits.table.with_columns(
            seed=pl.col("seed") + 100_000 * k, share_of_oracle=pl.col("share_of_oracle") + 0.01 * k
        )
        for k in range(4)
    ]
    cell = stable_cells(study, replace(fits, table=pl.concat(moved)))["pre_norm", "garch_high", "4"]
    assert cell.seed_spread() == pytest.approx(0.01 * np.std(range(4), ddof=1))
    assert len(cell.chosen) == len(study.panels)
    assert stable_cells(study, fits) == {}


@pytest.mark.slow
def test_the_answer_says_the_verdict_and_every_number_it_rests_on(tmp_path: Path) -> None:
    answer = answer_stability(STUDY, made_up(), tmp_path)
    assert answer.sentence.startswith("At 4 blocks Post-Norm is more stable: +0.")
    assert "and the mechanism is supported." in answer.sentence
    assert "At 12 blocks" in answer.sentence
    # do(c) alone was fitted there: it holds, and supports nothing.
    assert "the mechanism is undecided (1 held, 0 failed, 0 undecided, 6 not fitted)." in answer.sentence
    names = {path.name for path in tmp_path.iterdir()}
    assert {
        f"{name}.{kind}" for name in ("rates", "predictions", "dose", "widths") for kind in ("svg", "png")
    } <= names
    claims = pl.DataFrame(answer.tables["claims"], infer_schema_length=None)
    of_one = [("gate", 2), ("prediction", 8)]
    kinds = [*of_one, *((f"secondary {kind}", number) for kind, number in of_one), ("rival", 4)]
    assert claims["kind"].to_list() == [kind for kind, number in kinds for _ in range(number)]
    assert "Secondary, share of oracle at a tuned rate: At 4 blocks Post-Norm is as good" in answer.sentence
    widths: list[dict[str, Any]] = answer.tables["widths"]
    assert len(widths) == 12 * len(STUDY.panels)


def test_a_plan_tells_power_at_the_pilots_spread_or_at_several_where_there_is_none() -> None:
    unknown = power_of_stability(replace(STUDY, settings={**STUDY.settings, "pilot_spread": {}}))
    assert "no pilot has told yet which" in unknown[0]
    assert len(unknown) == 5
    told = power_of_stability(
        replace(
            STUDY, settings={**STUDY.settings, "pilot_spread": {"width": 0.1, "moved": 0.2, "null": 0.001}}
        )
    )
    assert "which the pilot found" in told[0]
    assert len(told) == 7
    assert told[1].endswith(": 100%")
    few = power_of_stability(replace(STUDY, panels=STUDY.panels[:4]))
    assert few == ["power    none: a verdict needs 8 panels, there are 4"]
