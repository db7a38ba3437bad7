"""What a final fit is asked beside its losses, each against a literal route."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import torch

from fints.config import ModelConfig
from fints.data import simulate, targets
from fints.model import Transformer, build
from fints.study.panel_cells import check_asked
from fints.study.panel_measures import further_measures
from fints.study.panel_planted import planted
from fints.training import predict

FEATURES = ("log_volatility", "a", "b")
N, T = 40, 5


class Drawn:
    """Windows that were drawn once."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[positions], torch.zeros(len(positions), T)


def network() -> Transformer:
    config = ModelConfig(width=8, depth=1, num_heads=2, residual="pre_norm")
    model = build(config, num_features=3, context=T, seed=4)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


GENERATOR = torch.Generator().manual_seed(6)
WINDOWS = Drawn(torch.randn(N, T, 3, generator=GENERATOR))
FORECAST, SIGNAL = torch.randn(2, N, generator=GENERATOR).double()
VOLATILITY = torch.rand(N, generator=GENERATOR).double()


def measured(asked: dict[str, object], *, failed: bool = False) -> dict[str, float | None]:
    return further_measures(
        asked,
        network(),
        WINDOWS,
        features=FEATURES,
        forecast=FORECAST,
        signal=SIGNAL,
        volatility=VOLATILITY,
        failed=failed,
    )


def share(p: torch.Tensor, s: torch.Tensor) -> float:
    return float(1 - ((p - s) ** 2).sum() / (s**2).sum())


def test_the_worst_block_is_of_neighbouring_dates_and_calm_windows_are_those_of_least_volatility() -> None:
    found = measured({"blocks": 4, "volatility": 0.25})
    p, s, volatility = FORECAST, SIGNAL, VOLATILITY
    blocks = [share(p[k : k + 10], s[k : k + 10]) for k in range(0, N, 10)]
    assert found["worst_block_share"] == pytest.approx(min(blocks))
    calm = volatility <= volatility.sort().values[9]
    loud = volatility >= volatility.sort().values[-10]
    assert found["calm_share"] == pytest.approx(share(p[calm], s[calm]))
    assert found["volatile_share"] == pytest.approx(share(p[loud], s[loud]))


def test_doing_a_scale_moves_the_scaled_features_alone() -> None:
    found = measured({"scales": (0.25, 4.0), "scaled_features": ("a", "b")})
    model = network()
    own = predict(model, WINDOWS)["mean"][:, 0].double()
    for factor in (0.25, 4.0):
        changed = WINDOWS.inputs.clone()
        changed[..., 1:] *= factor
        moved = predict(model, Drawn(changed))["mean"][:, 0].double() - own
        expected = math.sqrt(float((moved**2).mean() / (own**2).mean()))
        assert found[f"moved_at_{factor:g}"] == pytest.approx(expected, rel=1e-6)
    weight, bias = (one.detach() for one in model.embedding.linear.parameters())
    values = WINDOWS.inputs
    from_features = values[..., 1:] @ weight[:, 1:3].T
    whole = values @ weight[:, :3].T + bias
    expected = float((from_features**2).mean() / (whole**2).mean())
    assert found["input_share"] == pytest.approx(expected, rel=1e-5)


def test_a_failed_fit_and_a_signal_of_nothing_have_no_answer() -> None:
    found = measured({"scales": (4.0,), "scaled_features": ("a",)}, failed=True)
    assert found == {"moved_at_4": None, "input_share": None}
    zero = torch.zeros(N, dtype=torch.float64)
    told = further_measures(
        {"blocks": 2, "volatility": 0.5},
        network(),
        Drawn(torch.zeros(N, T, 3)),
        features=FEATURES,
        forecast=zero + 1,
        signal=zero,
        volatility=zero,
        failed=False,
    )
    assert told == {"worst_block_share": None, "calm_share": None, "volatile_share": None}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"block": 4}, "asked = 'block' is unknown"),
        ({"scales": (4.0,)}, r"must name features of the experiment \(log_volatility, a, b\); got \[\]"),
        ({"scaled_features": ("c",)}, r"got \['c'\]"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_asked(asked, FEATURES)


@pytest.mark.parametrize("target", ["volatility_scaled", "cross_sectional"])
def test_what_was_planted_is_the_outcome_without_its_noise_in_units_of_the_target(target: str) -> None:
    made = simulate(num_assets=20, num_days=200, noise="garch", r2=0.5, seed=2)
    frame = targets(made.panel, target, 1).join(made.signal, on=["date", "asset"])
    returns = targets(made.panel, "log_return", 1)["target"]
    found = planted(made, target).ravel()
    # Outcome less planted is noise alone: it is in proportion to the return's noise, date by date.
    rows = frame.with_columns(found=pl.Series(found), noise=returns - frame["signal"]).drop_nulls("target")
    rows = rows.filter(pl.col("found").is_not_nan())
    assert rows.height > 2000
    left = rows["target"] - rows["found"]
    if target == "volatility_scaled":
        np.testing.assert_allclose(left, rows["noise"] / rows["scale"], atol=1e-9)
    else:
        deviation = pl.Series("r", returns).to_frame().with_columns(made.signal["date"])
        spread = deviation.group_by("date").agg(pl.col("r").std(ddof=0)).drop_nulls()
        joined = rows.with_columns(left=left).join(spread, on="date")
        centred = joined["noise"] - joined.select(pl.col("noise").mean().over("date")).to_series()
        np.testing.assert_allclose(joined["left"], centred / joined["r"], atol=1e-9)
