"""From fits to verdicts: fits whose causes are known, made up and not trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fints.config import Experiment, override
from fints.diagnostics import MEDIATORS
from fints.interventions import DOSES, changes
from fints.study.cause_report import _gained, _present, _shares, answer_causes, power_of_causes, said
from fints.study.causes import cause_cells
from fints.study.intervals import interval
from fints.study.panel_cells import Days
from fints.study.panel_design import PanelPreset, PanelStudy, PanelTuning, Yoked
from fints.study.panel_store import Fits

CAUSES = {"gradient": "gradient_equaliser", "noise": "best_weights"}
PLACEBOS = {"gradient": "gradient_equaliser_placebo"}
LEVELS = ("none", *CAUSES.values(), *PLACEBOS.values())
MOMENTS, SUBLAYERS = (5, 10), 3
MEASURED = [name for names in MEDIATORS.values() for name in names if name != "train_test_gap"]


def study(panels: int = 8) -> PanelStudy:
    return PanelStudy(
        title="Which cause?",
        base=Experiment(),
        simulation={"r2": 0.2},
        days=Days(train=30, validation=5, test=5),
        factors={
            "residual": {"post_norm": {"model.residual": "post_norm"}},
            "tier": {"r2_20": {"simulation.r2": 0.2}},
            "depth": {"1": {"model.depth": 1}, "2": {"model.depth": 2}},
            "relief": {"none": {}, **{name: changes(name, DOSES[name]) for name in LEVELS[1:]}},
        },
        tuning=PanelTuning(space={"training.learning_rate": (1e-3,)}, panels=(90,)),
        panels=tuple(range(100, 100 + panels)),
        presets={"quick": PanelPreset()},
        answer="causes",
        settings={
            "reference": "1",
            "deep": "2",
            "causes": CAUSES,
            "placebos": PLACEBOS,
            "smallest": {"r2_20": 0.01},
            "pilot_spread": {"r2_20": 0.005},
        },
    )


def made_up(
    asked: PanelStudy,
    removed: dict[str, float],
    *,
    moved: dict[str, dict[str, float]],
    calibration: dict[str, float] | None = None,
    penalty: float = 0.05,
) -> Fits:
    """Fits with this penalty, of which a relief removes a share, and moves mediators by a factor."""
    table, rows = [], []
    for arm in asked.arms():
        level, deep = arm.levels["relief"], arm.levels["depth"] == "2"
        for panel in asked.panels:
            noise = np.random.default_rng([panel, LEVELS.index(level), deep]).normal(0, 0.002)
            base = np.random.default_rng(panel).normal(0.1, 0.03)
            own = (1 - removed.get(level, 0.0)) * penalty if deep else 0.0
            excess = base + own + noise
            left = (calibration or removed).get(level, 0.0)
            key = f"{arm.name}-{panel}"
            table.append(
                {
                    "key": key,
                    "arm": arm.name,
                    "role": "final",
                    "panel": panel,
                    "outcome": "finished",
                    "point": "{}",
                    "test_excess": excess,
                    "train_excess": excess - 0.02 * moved.get(level, {}).get("train_test_gap", 1.0),
                    "calibrated_excess": base + ((1 - left) * penalty if deep else 0.0) + noise,
                    "share_of_oracle": 1 - excess / 0.2,
                }
            )
            for measure in MEASURED:
                factor = moved.get(level, {}).get(measure, 1.0)
                rows += [
                    {
                        "key": key,
                        "step": step,
                        "layer": layer,
                        "measure": measure,
                        "value": factor * (layer + 1),
                    }
                    for step in (0, *MOMENTS)
                    for layer in range(SUBLAYERS)
                ]
    return Fits(table=pl.DataFrame(table), rows=pl.DataFrame(rows), missing=0)


WORKS: dict[str, dict[str, float]] = {
    "gradient_equaliser": {"gradient_norm": 2.0},
    "best_weights": {"train_test_gap": 0.2},
}


def cell(fits: Fits, asked: PanelStudy | None = None) -> Any:
    (found,) = cause_cells(asked or study(), fits)
    return found


def test_the_cause_whose_relief_removes_the_penalty_dominates() -> None:
    found = cell(made_up(study(), {"gradient_equaliser": 0.9}, moved=WORKS))
    assert found.verdict.cause == "gradient"
    assert found.verdict.shares["gradient"].value == pytest.approx(0.9, abs=0.1)
    assert found.checks["gradient_equaliser"].passed
    assert found.checks["gradient_equaliser"].deep["gradient_norm"].size == pytest.approx(1.0)
    assert found.checks["best_weights"].deep["train_test_gap"].mean == pytest.approx(-0.8, abs=0.01)


def test_the_penalty_is_its_two_parts_and_paired_on_panels() -> None:
    fits = made_up(study(), {}, moved=WORKS)
    found = cell(fits)
    both = np.add(found.optimisation, found.generalisation)
    assert np.allclose(found.penalty, both, atol=1e-12)
    by_name = {
        arm.levels["depth"]: fits.of(arm.name) for arm in study().arms() if arm.levels["relief"] == "none"
    }
    paired = by_name["2"]["test_excess"] - by_name["1"]["test_excess"]
    assert found.penalty == pytest.approx(paired.to_list())
    # What panels have in common drops out: their spread is six times that of the differences.
    assert np.std(found.penalty) < 0.2 * np.std(by_name["2"]["test_excess"].to_numpy())


def test_what_is_worse_in_the_deep_network_is_told_by_moment_and_side() -> None:
    """Ranks are halved there in the warm-up and later, the first gradient is a tenth, late alone."""
    asked, fits = study(), made_up(study(), {}, moved=WORKS)
    deep = [arm.name for arm in asked.arms() if arm.levels["depth"] == "2"]
    changed = fits.rows.with_columns(
        pl.when(
            pl.col("key").str.contains_any([f"{name}-" for name in deep])
            & (pl.col("measure") == "effective_rank")
        )
        .then(pl.col("value") / 2)
        .when(
            pl.col("key").str.contains_any([f"{name}-" for name in deep])
            & (pl.col("measure") == "gradient_norm")
            & (pl.col("layer") == 0)
            & (pl.col("step") == MOMENTS[1])
        )
        .then(pl.col("value") / 10)
        .otherwise(pl.col("value"))
        .alias("value")
    )
    asked = replace(asked, base=override(asked.base, {"training.warmup_steps": MOMENTS[0]}))
    (found,) = cause_cells(asked, Fits(table=fits.table, rows=changed, missing=0))
    early, late = found.present["to step 5"], found.present["all of training"]
    assert np.exp(early["effective_rank"]) == pytest.approx([0.5] * 8)
    assert np.exp(late["effective_rank"]) == pytest.approx([0.5] * 8)
    assert np.exp(early["first_gradient_share"]) == pytest.approx([1.0] * 8)
    # A tenth of the first, of which a third is in the mean of three sublayers, at one moment of two.
    assert np.exp(late["first_gradient_share"]) == pytest.approx([10 ** (-(2 / 3) / 2)] * 8)
    assert np.exp(late["gradient_signal"]) == pytest.approx([1.0] * 8)
    told, table = _present(asked, [found])
    assert table.rows[0][2:5] == ("**0.50 [0.50, 0.50]**", "1.00 [1.00, 1.00]", "1.00 [1.00, 1.00]")
    assert table.rows[1][5] == "**0.46 [0.46, 0.46]**"
    assert table.rows[2][2:6] == ("5", "never", "never", "10")
    assert told.rows[0][:4] == ("post_norm, r2_20", "not watched", "warm-up", "present")
    followed = with_distances(fits, asked, {0: 0.0, 5: 0.0, 10: 0.1})
    told, _ = _present(asked, cause_cells(asked, followed))
    assert told.rows[0][1] == "after step 5"
    told, _ = _present(asked, cause_cells(asked, with_distances(fits, asked, {0: 0.0, 10: -0.1})))
    assert told.rows[0][1] == "never"


def test_a_relief_that_does_not_move_its_mediator_carries_no_verdict() -> None:
    still = made_up(study(), {"gradient_equaliser": 0.9}, moved={})
    assert cell(still).verdict.cause is None
    assert "gradient" in cell(still).verdict.untested
    astray = WORKS | {"gradient_equaliser": {"gradient_norm": 2.0, "effective_rank": 1.2}}
    found = cell(made_up(study(), {"gradient_equaliser": 0.9}, moved=astray))
    assert "gradient" in found.verdict.untested
    assert "moved in the reference too: effective_rank 20%" in found.checks["gradient_equaliser"].reason


def at_another_rate(fits: Fits, rate: str, *, yoked: bool) -> Fits:
    """Fits whose relieved networks of one cause chose a rate that trebles every mediator by itself."""
    level = "-gradient_equaliser"
    moved = pl.col("arm").str.ends_with(level)
    table = fits.table.with_columns(point=pl.when(moved).then(pl.lit(rate)).otherwise(pl.col("point")))
    keys = table.filter(moved)["key"].to_list()
    trebled = pl.when(pl.col("key").is_in(keys)).then(pl.col("value") * 3).otherwise(pl.col("value"))
    rows = fits.rows.with_columns(trebled)
    if yoked:
        plain = fits.table.filter(pl.col("arm").str.ends_with("-none")).with_columns(
            role=pl.lit("yoked"), point=pl.lit(rate), key=pl.col("key") + "-yoked"
        )
        own = fits.rows.with_columns(key=pl.col("key") + "-yoked", value=pl.col("value") * 3)
        table = pl.concat([table, plain])
        rows = pl.concat([rows, own.filter(pl.col("key").is_in(plain["key"].to_list()))])
    return Fits(table=table, rows=rows, missing=0)


def test_a_relief_with_a_rate_of_its_own_is_checked_against_the_plain_network_at_that_rate() -> None:
    fits = made_up(study(), {"gradient_equaliser": 0.9}, moved=WORKS)
    asked = replace(study(), yoked=Yoked(factor="relief", plain="none", levels=tuple(CAUSES.values())))
    found = cell(at_another_rate(fits, "{}", yoked=False))
    assert "moved in the reference too" in found.checks["gradient_equaliser"].reason
    found = cell(at_another_rate(fits, '{"rate": 1}', yoked=True), asked)
    assert found.checks["gradient_equaliser"].passed
    assert found.checks["gradient_equaliser"].deep["gradient_norm"].size == pytest.approx(1.0)
    # Judged is each at its best: the penalty is that of the final fits.
    assert found.relieved == cell(fits).relieved
    # A panel whose yoked fits are not there yet is left out.
    lacking = at_another_rate(fits, '{"rate": 1}', yoked=True)
    table = lacking.table.filter(~((pl.col("panel") == 103) & (pl.col("role") == "yoked")))
    assert 103 not in cell(replace(lacking, table=table), asked).panels


def test_a_relief_at_a_further_dose_is_checked_and_shown_and_carries_no_verdict() -> None:
    asked = study()
    settings = asked.settings | {
        "causes": {"noise": "best_weights"},
        "placebos": {},
        "further": {"gradient_equaliser": "gradient"},
    }
    found = cell(made_up(asked, {"gradient_equaliser": 0.9}, moved=WORKS), replace(asked, settings=settings))
    assert list(found.checks) == ["best_weights", "gradient_equaliser"]
    assert found.checks["gradient_equaliser"].passed
    assert found.removed["gradient_equaliser"].value == pytest.approx(0.9, abs=0.1)
    assert found.verdict.cause is None
    assert "gradient" not in found.verdict.sentence


def test_what_a_relief_removed_whose_check_failed_is_told_in_brackets() -> None:
    asked = study()
    (table,) = _shares(asked, [cell(made_up(asked, {"gradient_equaliser": 0.9}, moved={}))])
    assert table.rows[0][1:3] == ("gradient", "gradient equaliser")
    assert table.rows[0][4].startswith("(9")
    # A placebo has no check, and stands below.
    assert table.rows[-1][1:3] == ("gradient", "gradient equaliser placebo")
    assert table.rows[-1][-1] == ""
    assert table.rows[0][-1] == "failed"
    (table,) = _shares(asked, [cell(made_up(asked, {"gradient_equaliser": 0.9}, moved=WORKS))])
    assert table.rows[0][4].startswith("9")
    (table,) = _shares(asked, [cell(made_up(asked, {}, moved=WORKS, penalty=0.0))])
    assert table.rows[0][4] == "–"


def test_a_relief_that_acts_at_one_moment_before_the_penalty_reaches_its_aim() -> None:
    asked = study()
    late = {**WORKS, "gradient_equaliser": {}}
    fits = with_distances(made_up(asked, {"gradient_equaliser": 0.9}, moved=late), asked, {5: 0.0, 10: 0.0})
    fits = with_distances(fits, asked, {20: 0.1})
    acts = (
        pl.col("key").str.contains("depth_2-gradient_equaliser-")
        & (pl.col("measure") == "gradient_signal")
        & (pl.col("step") == MOMENTS[1])
    )
    doubled = pl.when(acts).then(pl.col("value") * 2).otherwise(pl.col("value"))
    found = cell(replace(fits, rows=fits.rows.with_columns(doubled)), asked)
    assert found.before == MOMENTS[1]
    assert found.checks["gradient_equaliser"].passed
    assert found.checks["gradient_equaliser"].deep["gradient_signal"].size == pytest.approx(1.0)
    # The wrong way is no aim, however far.
    halved = pl.when(acts).then(pl.col("value") / 4).otherwise(pl.col("value"))
    wrong = cell(replace(fits, rows=fits.rows.with_columns(halved)), asked)
    assert not wrong.checks["gradient_equaliser"].passed
    # Nor is what comes once the penalty shows.
    plain = made_up(asked, {"gradient_equaliser": 0.9}, moved=late)
    sooner = with_distances(replace(plain, rows=plain.rows.with_columns(doubled)), asked, {5: 0.0, 10: 0.1})
    assert cell(sooner, asked).before == MOMENTS[0]
    assert not cell(sooner, asked).checks["gradient_equaliser"].passed


def test_a_relief_that_spoils_the_reference_has_removed_no_penalty() -> None:
    fits = made_up(study(), {}, moved=WORKS)
    spoilt = pl.col("arm").str.ends_with("depth_1-gradient_equaliser") & (pl.col("role") == "final")
    worse = fits.table.with_columns(
        pl.when(spoilt).then(pl.col(name) + 0.05).otherwise(pl.col(name)).alias(name)
        for name in ("test_excess", "calibrated_excess")
    )
    assert worse.filter(spoilt).height == 8
    found = cell(Fits(table=worse, rows=fits.rows, missing=0))
    assert np.mean(found.relieved["gradient_equaliser"]) == pytest.approx(0.05, abs=0.003)
    assert found.verdict.cause is None


def test_a_placebo_that_does_as_much_leaves_no_cause() -> None:
    removed = {"gradient_equaliser": 0.9, "gradient_equaliser_placebo": 0.9}
    assert cell(made_up(study(), removed, moved=WORKS)).verdict.cause is None


def test_noise_that_is_shrinkage_alone_is_said_not_to_dominate() -> None:
    fits = made_up(study(), {"best_weights": 0.9}, moved=WORKS, calibration={"best_weights": 0.1})
    found = cell(fits)
    assert (found.verdict.cause, found.verdict_calibrated.cause) == ("noise", None)
    assert "After the best scalar calibration noise does not dominate" in said(found)


def test_a_panel_that_lacks_a_fit_is_left_out_of_its_cell() -> None:
    fits = made_up(study(10), {"gradient_equaliser": 0.9}, moved=WORKS)
    lost = fits.table.filter(~((pl.col("panel") == 103) & pl.col("arm").str.ends_with("best_weights")))
    found = cell(Fits(table=lost, rows=fits.rows, missing=1), study(10))
    assert found.panels == [panel for panel in range(100, 110) if panel != 103]
    assert found.verdict.clusters == 9


def test_fewer_than_eight_panels_carry_no_verdict() -> None:
    fits = made_up(study(7), {"gradient_equaliser": 0.9}, moved=WORKS)
    found = cell(fits, study(7))
    assert found.verdict is None
    assert said(found) == "no verdict, 7 panels of at least 8."
    assert any("none: a verdict needs 8 panels" in line for line in power_of_causes(study(7)))


def test_the_start_of_training_is_no_part_of_a_check() -> None:
    fits = made_up(study(), {}, moved=WORKS)
    start = fits.rows.with_columns(
        value=pl.when(pl.col("step") == 0).then(1e6).otherwise(pl.col("value")), step=pl.col("step")
    )
    moves = cell(Fits(table=fits.table, rows=start, missing=0)).checks["gradient_equaliser"].deep
    assert moves == cell(fits).checks["gradient_equaliser"].deep


def test_without_a_penalty_watched_the_deep_network_is_asked_in_its_warm_up_the_reference_always() -> None:
    fits = made_up(study(), {}, moved=WORKS)
    late = fits.rows.filter(pl.col("step") == 10).with_columns(step=pl.lit(600, dtype=pl.Int64))
    relieved = pl.col("key").str.contains("-gradient_equaliser-") & (pl.col("measure") == "gradient_norm")
    late = late.with_columns(value=pl.when(relieved).then(pl.col("value") * 8).otherwise(pl.col("value")))
    rows = pl.concat([fits.rows, late.select(fits.rows.columns)])
    check = cell(Fits(table=fits.table, rows=rows, missing=0)).checks["gradient_equaliser"]
    assert check.deep["gradient_norm"].size == pytest.approx(1.0)
    assert check.reference["gradient_norm"].size > 2.0


def test_a_relief_under_which_every_deep_fit_diverged_carries_no_verdict() -> None:
    fits = made_up(study(), {"gradient_equaliser": 0.9}, moved=WORKS)
    lost = fits.rows.filter(~pl.col("key").str.contains("depth_2-gradient_equaliser-"))
    found = cell(Fits(table=fits.table, rows=lost, missing=0))
    assert not found.checks["gradient_equaliser"].passed
    assert found.checks["gradient_equaliser"].reason == "not measured"
    assert "gradient" in found.verdict.untested
    assert found.direct is None


@pytest.mark.slow
def test_the_figures_of_an_answer_are_there_and_the_same_twice(tmp_path: Path) -> None:
    fits = made_up(study(), {"gradient_equaliser": 0.9}, moved=WORKS)
    contents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        answer = answer_causes(study(), fits, folder)
        pictures = [block.path for block in answer.blocks if hasattr(block, "caption")]
        assert [Path(path).name for path in pictures] == ["penalty.svg", "reliefs.svg", "gradients.svg"]
        contents.append([(folder / Path(path).name).read_bytes() for path in pictures])
    assert contents[0] == contents[1]
    assert answer.sentence.startswith("post_norm, r2_20: The depth penalty")


def test_what_depth_recovers_is_told_against_the_shallowest_where_there_are_three() -> None:
    asked = study()
    found = cell(made_up(asked, {}, moved={}))
    assert found.gained["2"] == pytest.approx([-lost / 0.2 for lost in found.penalty])
    assert _gained([found]) == []
    three = replace(found, share={**found.share, "3": 0.1}, gained={**found.gained, "3": [0.1] * 8})
    _, table = _gained([three])
    assert table.columns == ("cell", "depth 2", "depth 3")
    assert table.rows[0][2] == "10.00 [10.00, 10.00]"
    assert _gained([replace(three, gained={})]) == []


def test_an_interval_is_students_t() -> None:
    mean, low, high = interval([1.0, 2.0, 4.0])
    half = 4.302652729911275 * np.std([1, 2, 4], ddof=1) / 3**0.5
    assert (mean, low, high) == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half))
    assert interval([1.0])[1:] == (-np.inf, np.inf)


def with_distances(fits: Fits, asked: PanelStudy, farther: dict[int, float]) -> Fits:
    """Fits whose deep networks are so much farther from the planted signal at each moment."""
    rows = [
        {
            "key": f"{arm.name}-{panel}",
            "step": step,
            "layer": None,
            "measure": "signal_distance",
            "value": 0.1 + more * (arm.levels["depth"] == "2"),
        }
        for arm in asked.arms()
        for panel in asked.panels
        for step, more in farther.items()
    ]
    return replace(fits, rows=pl.concat([fits.rows, pl.DataFrame(rows, schema=fits.rows.schema)]))


@pytest.mark.parametrize(
    ("farther", "before"),
    [
        ({0: 0.0, 5: 0.001, 10: 0.04, 20: 0.08}, 5),
        # It shows from the moment on from which it stays.
        ({0: 0.0, 5: 0.06, 10: 0.01, 20: 0.08}, 10),
        ({0: 0.0, 5: 0.06, 10: 0.07, 20: 0.08}, 5),
        ({0: 0.0, 5: 0.06, 10: 0.01, 20: -0.01}, None),
    ],
)
def test_a_penalty_shows_once_half_of_it_is_there_to_stay(
    farther: dict[int, float], before: int | None
) -> None:
    fits = with_distances(made_up(study(), {}, moved=WORKS), study(), farther)
    assert cell(fits).before == before


def ill(fits: Fits, asked: PanelStudy, measure: str, factor: float, *, spread: float = 0.0) -> Fits:
    """Fits whose deep networks have this mediator so many times as large, more or less by panel."""
    deep = [f"{arm.name}-" for arm in asked.arms() if arm.levels["depth"] == "2"]
    panel = pl.col("key").str.extract(r"-(\d+)$").cast(pl.Int64)
    own = factor * ((panel % 2) * 2 - 1).cast(pl.Float64).mul(spread).exp()
    there = pl.col("key").str.contains_any(deep) & (pl.col("measure") == measure)
    value = pl.when(there).then(pl.col("value") * own).otherwise(pl.col("value"))
    return replace(fits, rows=fits.rows.with_columns(value))


def test_a_penalty_that_no_relief_decides_points_to_the_suspect_that_alone_is_there() -> None:
    asked = study()
    plain = ill(made_up(asked, {}, moved={}), asked, "effective_rank", 0.5)
    # Nothing is before a penalty that was not watched.
    assert cell(plain).verdict.decision == "undecided_cause"
    fits = with_distances(plain, asked, {0: 0.0, 5: 0.0, 10: 0.1})
    found = cell(fits)
    assert found.suspects["before the penalty"] == found.suspects["warm-up"]
    assert found.suspects["warm-up"]["representation"] == "present"
    assert found.suspects["warm-up"]["amplification"] == "absent"
    # The gap is the same in both, so the penalty is all of optimisation.
    assert found.suspects["warm-up"]["noise"] == "absent"
    assert (found.verdict.decision, found.verdict.pointed, found.verdict.cause) == (
        "points_to",
        "representation",
        None,
    )
    assert "Seen, not brought about." in found.verdict.sentence
    two = cell(ill(fits, asked, "output_change", 2.0))
    assert two.suspects["warm-up"]["amplification"] == "present"
    assert two.verdict.decision == "undecided_cause"


def test_a_suspect_is_there_only_if_it_surely_is_a_quarter_worse_and_absent_only_if_surely_not() -> None:
    asked = study()
    fits = made_up(asked, {}, moved={})
    assert cell(ill(fits, asked, "effective_rank", 2.0)).suspects["warm-up"]["representation"] == "absent"
    assert cell(ill(fits, asked, "effective_rank", 0.9)).suspects["warm-up"]["representation"] == "absent"
    unsure = cell(ill(fits, asked, "effective_rank", 0.7, spread=0.5))
    assert unsure.suspects["warm-up"]["representation"] == "unclear"
    assert cell(ill(fits, asked, "step_output_change", 1.5)).suspects["warm-up"]["amplification"] == "present"


def test_the_norms_of_gradients_are_a_suspect_under_sgd_alone() -> None:
    asked = study()
    fits = ill(made_up(asked, {}, moved={}), asked, "gradient_norm", 0.1)
    assert cell(fits).suspects["warm-up"]["gradient"] == "absent"
    under_sgd = replace(asked, base=override(asked.base, {"training.optimizer": "sgd"}))
    assert cell(fits, under_sgd).suspects["warm-up"]["gradient"] == "present"


def test_noise_is_there_where_the_penalty_is_mostly_generalisation() -> None:
    asked = study()
    fits = made_up(asked, {}, moved={})
    learnt = fits.table.with_columns(
        train_excess=pl.when(pl.col("arm").str.contains("depth_2"))
        .then(pl.col("train_excess") - 0.05)
        .otherwise(pl.col("train_excess"))
    )
    found = cell(replace(fits, table=learnt))
    assert found.suspects["warm-up"]["noise"] == "present"
    assert found.verdict.pointed == "noise"
    # Where the deep network is better, half of the penalty is below 0, and nothing was fitted.
    better = cell(made_up(asked, {}, moved={}, penalty=-0.05))
    assert better.suspects["warm-up"]["noise"] == "unclear"


@pytest.mark.parametrize(
    ("measure", "factor", "suspect"),
    [
        ("effective_rank", 0.5, "representation"),
        ("centred_cosine", 2.0, "representation"),
        ("window_share", 0.5, "representation"),
        ("gradient_signal", 0.5, "gradient"),
        ("output_change", 2.0, "amplification"),
        ("step_output_change", 2.0, "amplification"),
    ],
)
def test_a_suspect_is_there_if_any_of_its_mediators_is_ill_and_the_ill_way(
    measure: str, factor: float, suspect: str
) -> None:
    asked = study()
    fits = made_up(asked, {}, moved={})
    found = cell(ill(fits, asked, measure, factor)).suspects["warm-up"]
    assert {name for name, state in found.items() if state == "present"} == {suspect}
    assert cell(ill(fits, asked, measure, 1 / factor)).suspects["warm-up"][suspect] == "absent"


def test_what_is_ill_after_the_penalty_shows_is_no_suspect_and_no_aim() -> None:
    asked = replace(study(), base=override(study().base, {"training.warmup_steps": 1}))
    late = pl.col("step") == MOMENTS[1]
    healthy = made_up(asked, {"gradient_equaliser": 0.9}, moved=WORKS)
    sick = ill(healthy, asked, "effective_rank", 0.1)
    only_late = pl.concat([healthy.rows.filter(~late), sick.rows.filter(late)])
    shown = with_distances(replace(healthy, rows=only_late), asked, {0: 0.0, 5: 0.0, 10: 0.1})
    found = cell(shown, asked)
    assert found.before == MOMENTS[0]
    assert found.suspects["before the penalty"]["representation"] == "absent"
    assert found.worse_from["effective_rank"] == MOMENTS[1]
    # The relief moves its mediator from the first moment on; where it does so late alone, it misses its aim.
    assert found.checks["gradient_equaliser"].passed
    relieved = pl.col("key").str.contains("depth_2-gradient_equaliser-") & (
        pl.col("measure") == "gradient_norm"
    )
    undone = pl.when(relieved & ~late).then(pl.col("value") / 2).otherwise(pl.col("value"))
    missed = cell(replace(shown, rows=shown.rows.with_columns(undone)), asked)
    assert not missed.checks["gradient_equaliser"].passed


def test_a_suspect_that_was_not_measured_on_every_panel_is_unclear() -> None:
    asked = study()
    fits = made_up(asked, {}, moved={})
    lost = (pl.col("measure") == "effective_rank") & pl.col("key").str.contains("depth_2-none-10[0-3]")
    found = cell(replace(fits, rows=fits.rows.filter(~lost)))
    assert found.suspects["warm-up"]["representation"] == "unclear"
    assert found.suspects["warm-up"]["amplification"] == "absent"
