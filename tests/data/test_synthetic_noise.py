"""Noise of a simulated panel: each dial moves what it names and leaves the unconditional variance alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fints.data.synthetic_noise import PERSISTENCE, Noise, draw_noise

QUIET = {
    "vol_of_vol": 0.0,
    "degrees": math.inf,
    "news": "square",
    "leverage": 0.0,
    "common_share": 0.0,
    "regime_ratio": 1.0,
    "jump_share": 0.0,
    "jumps_a_year": 4.0,
    "volatility_daily": 1.0,
}


def draw(shape: tuple[int, int], seed: int, **dials: object) -> tuple[np.ndarray, np.ndarray]:
    return draw_noise(Noise(**(QUIET | dials)), shape, seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_conditional_variance_is_its_recursion(seed):
    generator = np.random.default_rng(seed)
    dials = {
        "vol_of_vol": generator.uniform(0.2, 1.2),
        "degrees": generator.choice([4.5, 5.0, 8.0, math.inf]),
        "leverage": generator.uniform(0, 1),
        "news": ["square", "score"][seed % 2],
    }
    shocks, volatility = draw((300, 3), seed, **dials)
    z, nu, rho = shocks / volatility, dials["degrees"], PERSISTENCE
    score = dials["news"] == "score" and math.isfinite(nu)
    kurtosis = 3.0 if math.isinf(nu) else (3 * (nu + 1) / (nu + 3) if score else 3 + 6 / (nu - 4))
    c, leverage = dials["vol_of_vol"], dials["leverage"]
    alpha = c * math.sqrt((1 - rho**2) / ((kurtosis * (1 + leverage**2) - 1) * (1 + c**2)))
    for t in range(1, 300):
        for i in range(3):
            news = z[t - 1, i] ** 2
            if score:
                news = (nu + 1) * news / (nu - 2 + news)
            weight = alpha * (1 - leverage * math.copysign(1, z[t - 1, i]))
            wanted = (1 - rho) + volatility[t - 1, i] ** 2 * (weight * news + rho - alpha)
            assert volatility[t, i] ** 2 == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("degrees", [3.0, 4.0, 5.0])
@pytest.mark.parametrize("leverage", [0.0, 0.7])
def test_under_the_score_every_degree_has_every_dose_and_the_dose_is_the_variation(degrees, leverage):
    for dose in (0.3, 0.6):
        _, volatility = draw(
            (3000, 200), 1, vol_of_vol=dose, degrees=degrees, news="score", leverage=leverage
        )
        variance = volatility[500:] ** 2
        assert variance.mean() == pytest.approx(1, abs=0.03)
        assert variance.std() == pytest.approx(dose, rel=0.08)


def test_the_two_news_are_one_where_innovations_are_gaussian():
    square, score = (draw((200, 2), 2, vol_of_vol=0.8, news=news) for news in ("square", "score"))
    np.testing.assert_array_equal(square, score)


@pytest.mark.parametrize(
    "dials",
    [
        {"vol_of_vol": 0.5},
        {"vol_of_vol": 1.0},
        {"vol_of_vol": 1.0, "leverage": 1.0},
        {"vol_of_vol": 1.0, "degrees": 5.0},
        {"vol_of_vol": 1.0, "degrees": 4.0, "news": "score"},
        {"degrees": 5.0},
        {"regime_ratio": 3.0},
        {"jump_share": 0.4},
        {"vol_of_vol": 0.7, "regime_ratio": 2.0, "jump_share": 0.2, "leverage": 0.5, "common_share": 0.3},
    ],
    ids=str,
)
def test_the_unconditional_variance_is_the_same_at_every_dial(dials):
    found, known = [], []
    for seed in range(10):
        shocks, volatility = draw((2500, 20), seed, **dials)
        found.append((shocks[500:] ** 2).mean())
        known.append((volatility[500:] ** 2).mean())
    for values in (found, known):
        error = np.std(values, ddof=1) / math.sqrt(10)
        assert error < 0.06
        assert abs(np.mean(values) - 1) < 3.5 * error + 1e-9


def test_with_leverage_losses_raise_volatility_and_gains_do_not():
    def response(leverage: float) -> float:
        shocks, volatility = draw((4000, 20), 3, vol_of_vol=0.8, leverage=leverage)
        growth = volatility[1:] ** 2 / volatility[:-1] ** 2
        z = (shocks / volatility)[:-1]
        return float(growth[z < -1.5].mean() - growth[z > 1.5].mean())

    assert abs(response(0.0)) < 0.01
    assert response(1.0) > 0.3
    shocks, volatility = draw((4000, 20), 3, vol_of_vol=0.8, leverage=1.0)
    gains, variance = (shocks > 0)[:-1], volatility**2
    decay = (variance[1:] - (1 - PERSISTENCE))[gains] / variance[:-1][gains]
    assert np.ptp(decay) < 1e-12


def test_regimes_are_common_two_and_turbulent_on_a_quarter_of_the_days():
    _, volatility = draw((200_000, 2), 4, regime_ratio=3.0)
    levels = np.unique(volatility.round(12))
    assert len(levels) == 2
    assert levels[1] / levels[0] == pytest.approx(3.0)
    assert (volatility[:, 0] == volatility[:, 1]).all()
    turbulent = volatility[:, 0] > 1
    assert turbulent.mean() == pytest.approx(0.25, abs=0.02)
    left = turbulent[:-1] & ~turbulent[1:]
    assert turbulent[:-1].sum() / left.sum() == pytest.approx(50, rel=0.07)


def test_jumps_are_as_frequent_and_as_large_as_asked_and_known_in_the_volatility():
    calm, _ = draw((5000, 20), 5)
    shocks, volatility = draw((5000, 20), 5, jump_share=0.5, jumps_a_year=8)
    jumps = shocks - math.sqrt(0.5) * calm
    jumped = np.abs(jumps) > 1e-12
    assert jumped.mean() * 252 == pytest.approx(8, rel=0.06)
    assert (jumps**2).mean() == pytest.approx(0.5, rel=0.08)
    np.testing.assert_allclose(volatility, 1.0)
    assert abs(np.corrcoef(jumped[:, 0], jumped[:, 1])[0, 1]) < 0.05


def test_dials_of_the_variance_leave_the_innovations_of_a_seed_alone():
    base, _ = draw((300, 4), 6, common_share=0.0)
    for dials in ({"vol_of_vol": 1.0}, {"regime_ratio": 3.0}, {"vol_of_vol": 1.0, "leverage": 1.0}):
        shocks, volatility = draw((300, 4), 6, **dials)
        np.testing.assert_allclose(shocks / volatility, base, atol=1e-12)


def test_standardised_t_has_variance_one_and_heavier_tails_with_fewer_degrees():
    tails = []
    for degrees in (math.inf, 5.0, 4.0):
        z, _ = draw((20_000, 20), 7, degrees=degrees)
        assert z.var() == pytest.approx(1, abs=0.03)
        tails.append((np.abs(z) > 4).mean())
    assert tails[0] < tails[1] / 10
    assert tails[1] < tails[2]


def test_common_volatility_makes_the_volatilities_of_assets_move_together():
    together, alone = (
        np.corrcoef((draw((4000, 10), 8, vol_of_vol=0.5, common_share=share)[1] ** 2).T)
        for share in (0.6, 0.0)
    )
    off = ~np.eye(10, dtype=bool)
    assert together[off].mean() > 0.3
    assert abs(alone[off].mean()) < 0.1


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"vol_of_vol": 0.5, "degrees": 4.0}, 'degrees above 4.*got 4.0; with news = "score" any degrees'),
        ({"vol_of_vol": 0.5, "degrees": 2.0, "news": "score"}, "degrees above 2"),
        ({"leverage": 1.5}, r"leverage in \[0, 1\]; got 1.5"),
        ({"regime_ratio": 0.5}, "regime_ratio of at least 1"),
        ({"jump_share": 1.0}, r"jump_share in \[0, 1\)"),
        ({"jumps_a_year": 0.0}, "jumps_a_year"),
        ({"vol_of_vol": math.nan}, "vol_of_vol of at least 0; got nan"),
        ({"vol_of_vol": math.inf}, "vol_of_vol of at least 0; got inf"),
        ({"volatility_daily": math.nan}, "volatility_daily above 0"),
    ],
)
def test_impossible_dials_are_refused(dials, said):
    with pytest.raises(ValueError, match=said):
        Noise(**(QUIET | dials))
