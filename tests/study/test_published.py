"""Published claims are told from the fits by measures and margins that stand in the study's file."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fints.config import Experiment, ModelConfig
from fints.study.panel_store import Fits
from fints.study.published import MEASURES, Cells
from fints.study.published_exact import (
    conversions,
    cost_of_streams,
    entropy_bound,
    exact_checks,
    gated_copies_difference,
)
from fints.study.published_report import answer_published, claims_of, power_of_published

FILE = Path(__file__).resolve().parents[2] / "studies" / "published_claims.py"
HYPER = "dynamic_hyper_connections"
PRE, HC = ("pre_norm", "4", "plain"), (HYPER, "4", "plain")
PANELS = tuple(range(300, 308))


@pytest.fixture(scope="module")
def study() -> Any:
    return runpy.run_path(str(FILE))["STUDY"].sized("standard")


def made(study: Any, changes: dict[tuple[str, str, str], dict[str, Any]] | None = None) -> Fits:
    """Fits of every arm of a study on every panel; `changes` gives columns, or rows by layer, of a cell."""
    table, rows = [], []
    for number, arm in enumerate(study.arms()):
        rate = float(arm.levels["rate"])
        cell = (arm.levels["residual"], arm.levels["depth"], arm.levels["case"])
        own = (changes or {}).get(cell, {})
        for panel in study.panels:
            key = f"{arm.name}-{panel}"
            # The best rate is 0.002 by both losses unless a cell says otherwise.
            best = own.get("best", 0.002)
            away = abs(math.log(rate / best))
            share = 0.8 - 0.1 * away + 0.001 * (panel % 5)
            row = {
                "key": key,
                "arm": arm.name,
                "role": "final",
                "panel": panel,
                "outcome": "finished",
                "validation_loss": 1.0 + away,
                "test_excess": 0.2 * (1 - share),
                "share_of_oracle": share,
                "spikes_per_thousand": 0.0,
            }
            value = own.get("row")
            table.append(row | ({} if value is None else value(rate, panel)))
            for measure, layers in own.get("layers", {}).items():
                for layer, number_of in enumerate(layers):
                    rows.append((key, None, layer, measure, number_of + 1e-6 * (panel + number)))
            for step, distance in own.get("curve", ()):
                rows.append((key, step, None, "validation_distance", distance))
    schema = {
        "key": pl.String,
        "step": pl.Int64,
        "layer": pl.Int64,
        "measure": pl.String,
        "value": pl.Float64,
    }
    return Fits(
        table=pl.DataFrame(table, infer_schema_length=None),
        rows=pl.DataFrame(rows, schema=schema, orient="row"),
        missing=0,
    )


def measure(name: str, cells: Cells, *keys: tuple[str, str, str]) -> list[float]:
    return [*MEASURES[name][1](cells, *keys).values()]


def test_a_network_is_read_at_the_rate_that_the_other_panels_choose(study: Any) -> None:
    def lucky(rate: float, panel: int) -> dict[str, float]:
        # On its own panel the low rate looks best there, and there alone.
        return {"validation_loss": 0.0} if (rate, panel) == (0.0007, 303) else {}

    cells = Cells(study, made(study, {PRE: {"row": lucky}}))
    arms = {panel: row["arm"] for panel, (row,) in cells.chosen(PRE).items()}
    assert arms[303].endswith("rate_0.002")
    # One panel less than nothing pulls the mean of the others below.
    assert arms[300].endswith("rate_0.002")


def test_cells_are_compared_at_the_rates_that_all_were_fitted_at(study: Any) -> None:
    cells = Cells(study, made(study, {HC: {"best": 0.016}}))
    both = cells.chosen(HC, ("hyper_1", "4", "plain"))
    # hyper_1 has the two low rates only, so the other may not be read at its best one.
    assert {row["arm"].rsplit("_", 1)[-1] for row, _ in both.values()} == {"0.002"}
    assert {row["arm"].rsplit("_", 1)[-1] for (row,) in cells.chosen(HC).values()} == {"0.016"}


def test_losses_and_shares_are_differences_at_the_chosen_rates(study: Any) -> None:
    better = {HC: {"row": lambda rate, panel: {"test_excess": 0.01 * panel, "spikes_per_thousand": 2.0}}}
    cells = Cells(study, made(study, better))
    plain = [0.2 * (1 - (0.8 + 0.001 * (panel % 5))) for panel in PANELS]
    expected = [0.01 * panel - other for panel, other in zip(PANELS, plain, strict=True)]
    assert measure("excess", cells, HC, PRE) == pytest.approx(expected)
    assert measure("gain", cells, HC, PRE) == pytest.approx([-value for value in expected])
    assert measure("spikes", cells, HC, PRE) == [2.0] * 8


def test_slopes_ends_and_means_are_those_of_the_layers(study: Any) -> None:
    layers = {
        "adjacent_cosine": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        "trunk_size": [3 * (k + 1) ** 0.5 for k in range(8)],
        "recent_share": [(k + 1) ** -1.0 for k in range(8)],
        "gradient_norm": [3.0, 4.0, 1, 1, 1, 1, 0.6, 0.8],
        "source_weight": [1.0, 2, 3, 4, 5, 6, 8, 7],
        "skip_rise": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        "gradient_variance": [4.0] * 8,
    }
    halved = {"layers": {"gradient_variance": [2.0] * 8}}
    cells = Cells(study, made(study, {PRE: {"layers": layers}, HC: halved}))
    assert measure("late_cosine", cells, PRE) == pytest.approx([0.65] * 8, abs=1e-3)
    assert measure("size_slope", cells, PRE) == pytest.approx([0.5] * 8, abs=1e-3)
    assert measure("share_slope", cells, PRE) == pytest.approx([-1.0] * 8, abs=2e-2)
    assert measure("gradient_ends", cells, PRE) == pytest.approx([5.0] * 8, rel=1e-2)
    # Spearman of two neighbours changed about: 1 - 6 * 2 / (8 * 63).
    assert measure("attribution", cells, PRE) == pytest.approx([1 - 12 / 504] * 8)
    assert measure("variance_ratio", cells, PRE, HC) == pytest.approx([2.0] * 8, rel=1e-3)
    assert measure("late_blocks", cells, PRE) == []


def test_steps_are_those_to_what_the_other_ends_with_and_a_tenth_above(study: Any) -> None:
    slow = {"curve": [(0, 1.0), (100, 0.8), (200, 0.6), (300, 0.4)]}
    fast = {"curve": [(0, 1.0), (100, 0.5), (200, 0.4), (300, 0.4)]}
    never = {"curve": [(0, 1.0), (300, 0.9)]}
    cells = Cells(study, made(study, {PRE: slow, HC: fast, ("hyper_1", "4", "plain"): never}))
    # The level is 0.46: the slow one is there after 270 steps, the fast one after 140.
    assert measure("steps_ratio", cells, HC, PRE) == pytest.approx([140 / 270] * 8)
    assert measure("steps_ratio", cells, ("hyper_1", "4", "plain"), PRE) == pytest.approx([300 / 270] * 8)
    assert measure("steps_ratio", cells, PRE, ("hyper_1", "4", "plain")) != []


def test_rates_are_compared_by_the_upper_ends_of_their_ranges(study: Any) -> None:
    def wide(rate: float, panel: int) -> dict[str, float]:
        return {"share_of_oracle": 0.8}

    def narrow(rate: float, panel: int) -> dict[str, float]:
        return {"share_of_oracle": 0.8 if rate <= 0.002 else 0.0}

    cells = Cells(study, made(study, {HC: {"row": wide}, PRE: {"row": narrow}}))
    (ratio, *_) = measure("rate_ratio", cells, HC, PRE)
    # From 0.8 to 0 between 0.002 and 0.0056 on a logarithmic scale; 90 % is crossed a tenth of the way.
    assert ratio == pytest.approx(0.016 / (0.002 * 2.8**0.1))


def test_what_is_lost_at_the_others_rate_is_that_of_its_own_networks(study: Any) -> None:
    cells = Cells(study, made(study, {HC: {"best": 0.0056}}))
    lost = measure("lost_at_the_others_rate", cells, HC, PRE)
    assert lost == pytest.approx([0.1 * math.log(0.0056 / 0.002)] * 8)
    off = (HYPER, "4", "no_clipping")
    worse = {off: {"row": lambda rate, panel: {"share_of_oracle": 0.1}}}
    cells = Cells(study, made(study, worse))
    mean = sum(0.8 - 0.1 * math.log(rate / 0.002) for rate in (0.0056, 0.016)) / 2
    found = measure("lost_without", cells, HC, off)
    assert found == pytest.approx([mean + 0.001 * (panel % 5) - 0.1 for panel in PANELS])


def test_a_rate_whose_fits_diverged_is_not_chosen(study: Any) -> None:
    def failed(rate: float, panel: int) -> dict[str, Any]:
        return {"outcome": "diverged", "validation_loss": 0.0} if rate == 0.002 else {}

    cells = Cells(study, made(study, {PRE: {"row": failed}}))
    assert {row["arm"].rsplit("_", 1)[-1] for (row,) in cells.chosen(PRE).values()} <= {"0.0007", "0.0056"}


def test_the_answer_counts_its_claims_and_shows_every_row(
    study: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fints.study.canvas.write_figure", lambda canvas, path: None)
    deep = ("pre_norm", "12", "plain")
    layers = {"adjacent_cosine": [0.97] * 24, "trunk_size": [(k + 1) ** 0.5 for k in range(24)]}
    answer = answer_published(study, made(study, {deep: {"layers": layers}}), tmp_path)
    text = json.dumps([getattr(block, "rows", getattr(block, "text", "")) for block in answer.blocks])
    # Growth by the square root, and a cosine in the middle of its interval, are surely so.
    assert "neighbouring layers of Pre-Norm have a cosine of 0.95 to 0.99" in answer.sentence
    assert "the stream of Pre-Norm grows with depth" in answer.sentence.partition("Held:")[2]
    asked = [claim for claim in claims_of(study) if claim.claim in text]
    assert len(asked) == 24
    assert "at D 32 on this data" in answer.sentence
    assert {row["claim"] for row in answer.tables["claims"]} >= {
        "cosine_pre_norm",
        "stream_grows",
        "penalty_12",
    }
    assert "24 claims of 28" in power_of_published(study)[0]


def test_every_claim_has_a_source_a_known_measure_and_cells_of_some_size() -> None:
    whole = runpy.run_path(str(FILE))["STUDY"]
    reachable = {
        tuple(arm.levels[factor] for factor in ("residual", "depth", "case"))
        for name in whole.presets
        for arm in whole.sized(name).arms()
    }
    for claim in claims_of(whole):
        assert claim.source.startswith(("S", "P (arXiv"))
        assert set(claim.cells) <= reachable
    panels = [set(size.panels or whole.panels) for size in whole.presets.values()]
    assert min(min(own) for own in panels) >= 300


def test_gated_copies_are_pre_norm_and_the_entropy_has_its_bound() -> None:
    model = ModelConfig(width=16, depth=2)
    assert gated_copies_difference(model, num_features=3, context=5, seed=1) < 1e-12
    assert entropy_bound(4) == pytest.approx(1.3863, abs=1e-4)
    verdicts = {one.claim: one.verdict for one in exact_checks(Experiment(model=model))}
    assert "impossible as stated" in verdicts.values()
    assert "false: they are Pre-Norm" in verdicts.values()


def test_a_network_moves_to_what_equals_it_and_streams_cost_what_is_counted() -> None:
    found = conversions(ModelConfig(width=16, depth=2), num_features=3, context=5)
    assert HYPER in found
    assert "post_norm" not in found
    assert max(found.values()) < 1e-2
    costs = cost_of_streams(Experiment(model=ModelConfig(width=32, depth=4)))
    # By the formula of docs/schemes.md: |N_dyn| + D (n + 2) + n (n + 2) + 2 a sublayer.
    extra = 8 * (2 * 32 + 32 * 6 + 4 * 6 + 2)
    base = extra / (costs["parameters"] - 1)
    assert base == pytest.approx(round(base), abs=1e-6)
    assert costs["memory_recomputed"] < costs["memory"]
