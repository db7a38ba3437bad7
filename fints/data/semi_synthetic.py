r"""A real panel whose conditional mean is exactly zero, and a planted signal on top.

With u the log return of an asset over its own trading day that ends at t,

.. math::

    r_{i,t} = \epsilon_t\, u_{i,t} + s_{i,t^-}, \qquad \epsilon_t = \pm 1 \text{ with equal chance},
    \qquad s_{i,t} = k\, v_{i,t}\, g_{i,t}

========================  ===============================================================================
symbol                    meaning
========================  ===============================================================================
:math:`\epsilon_t`        one sign a date, the same for all assets, independent of everything else
t^-                       the asset's own trading day before t
g                         "linear", "interaction", "gated_filter", "memory_chain": those of
                          `fints.data.synthetic_signals` in two new columns a and b, independent N(0, 1),
                          lags in own trading days; "reversal":
                          :math:`-\tanh(r_t / \sigma_t)`; "gated_reversal": :math:`-\tanh(r_t / \sigma_t)
                          \tanh(r_{t^-} / \sigma_{t^-})`, both of the planted panel itself
:math:`\sigma_t`          the panel's causal volatility (`fints.data.targets`), of the planted returns
v                         1 ("constant", matched pooled) or :math:`\sigma_t` ("proportional", matched
                          conditional)
k                         such that :math:`\sum s^2 / (\sum s^2 + \sum u^2) = R^2`
========================  ===============================================================================

Without a signal the absolute returns, their clustering and tails are those of the real panel, and so is
every product of two assets' returns of one date, hence the correlation about zero; the conditional mean given
the whole past, other columns included, is zero: for each history with :math:`\epsilon_t` there is an equally
likely one with :math:`-\epsilon_t`. What was predictable in the real panel is not so here.

For signals of a and b the sum of squares is that of the expectation over a and b where the scale is constant,
and realised otherwise. The scale k reads the whole panel, as a simulator may: it is one number. Where
:math:`\sigma_t` is unknown (the first 63 own returns) a signal that needs it is 0.

The columns of the real panel stay as they are. They belong to the real history: prices among them (open,
high) no longer fit the price column.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable

import numpy as np
import polars as pl

from fints.data.catalog import seal
from fints.data.features import History
from fints.data.panel import Panel
from fints.data.synthetic import SCALES, Simulation
from fints.data.synthetic_signals import MOST_LINKS, SIGNALS, planted_g
from fints.data.targets import VOLATILITY_HALF_LIFE, VOLATILITY_WINDOW
from fints.words import counted

__all__ = ["flip_returns", "semi_synthetic"]

Array = np.ndarray

OWN_SIGNALS = ("reversal", "gated_reversal")
# k is found to this relative error of R2.
TOLERANCE = 1e-10


def semi_synthetic(
    panel: Panel,
    *,
    r2: float = 0.0,
    signal: str = "linear",
    depth_demand: int = 2,
    signal_scale: str = "constant",
    seed: int = 0,
) -> Simulation:
    """Sign the returns of a real panel at random and plant a signal of known R2.

    Sealed dates of a bundled panel are left out: nothing made from them may be read before a final study.

    Parameters
    ----------
    panel
        Real prices. Assets may be listed late, delisted early and halted.
    r2
        The oracle's R2 against zero, pooled, in [0, 1). 0 is the null.
    signal
        "linear", "interaction", "gated_filter", "memory_chain" (of new columns ``a`` and ``b``, which the
        null has too), "reversal" or "gated_reversal" (of the panel's own past).
    depth_demand
        Links of the memory chain, 1 to 8.
    signal_scale
        "constant" or "proportional" to the causal volatility.
    seed
        Whole number of at least 0; signs and features are drawn apart, so the signs of a seed are the same
        whatever the signal.

    Returns
    -------
    Simulation
        ``signal`` has a row for each price. ``volatility`` is the causal volatility, an estimate, where it
        is known.

    Raises
    ------
    ValueError
        If an argument is unknown or outside its range, every date is sealed, the panel has a column ``a``
        or ``b``, or no asset has two prices that differ.
    """
    if signal not in (*SIGNALS, *OWN_SIGNALS):
        raise ValueError(
            f"signal = {signal!r} is unknown. Choose one of {', '.join((*SIGNALS, *OWN_SIGNALS))}."
        )
    if signal_scale not in SCALES:
        raise ValueError(f"signal_scale = {signal_scale!r} is unknown. Choose one of {', '.join(SCALES)}.")
    if not 0 <= r2 < 1:
        raise ValueError(f"semi_synthetic needs r2 in [0, 1); got {r2}.")
    if not 1 <= depth_demand <= MOST_LINKS:
        raise ValueError(f"semi_synthetic needs depth_demand from 1 to {MOST_LINKS}; got {depth_demand}.")
    if seed < 0:
        raise ValueError(f"semi_synthetic needs a seed of at least 0; got {seed}.")
    panel = _unsealed(panel)
    chain = f", depth_demand={depth_demand}" if signal == "memory_chain" else ""
    recipe = (
        f"fints.data.semi_synthetic(panel, r2={r2!r}, signal={signal!r}{chain}, "
        f"signal_scale={signal_scale!r}, seed={seed}) on {panel.name} from {panel.dates[0]} to "
        f"{panel.dates[-1]}, checksum {panel.checksum}"
    )
    has_features = signal in SIGNALS
    if has_features and (taken := {"a", "b"} & {panel.price, *panel.feature_columns}):
        raise ValueError(
            f"{panel.name} has a column {sorted(taken)[0]!r}, where the signal's features a and b go. Rename "
            'it, or choose signal = "reversal" or "gated_reversal".'
        )

    signs, features = (np.random.default_rng([seed, stream]) for stream in range(2))
    days = _OwnDays(panel)
    noise = days.returns * _signs(signs, len(panel.dates))[days.date]
    total = float((noise[days.has_previous] ** 2).sum())
    if not total > 0:
        raise ValueError(f"{panel.name} has no return other than 0; there is nothing to sign.")
    a, b = features.standard_normal((2, *days.shape))
    g: Array | None = planted_g(signal, a, b, depth_demand=depth_demand) if has_features else None

    def planted(k: float) -> tuple[Array, Array]:
        return _plant(noise, k, days, g=g, signal=signal, proportional=signal_scale == "proportional")

    if r2 == 0:
        returns, oracle = planted(0.0)
    elif g is not None and signal_scale == "constant":
        returns, oracle = planted(math.sqrt(r2 / (1 - r2) * total / days.has_next.sum()))
    else:
        k = _solve(lambda k: _share(planted(k)[1][days.has_next], total), r2)
        returns, oracle = planted(k)

    made = days.with_returns(panel, returns)
    columns = {"a": a, "b": b} if has_features else {}
    frame = made.with_columns(**{name: days.on_rows(values) for name, values in columns.items()})
    result = Panel(frame, price=panel.price, name=f"semi-synthetic-{panel.name}-{signal}-{seed}")
    keys = panel.frame.select("date", "asset")
    sigma = _volatility(returns, days) if days.shape[0] > VOLATILITY_WINDOW else np.full(days.shape, np.nan)
    outcome = returns[days.has_previous]
    error = outcome - np.vstack([np.zeros((1, days.shape[1])), oracle[:-1]])[days.has_previous]
    return Simulation(
        panel=result,
        signal=keys.with_columns(signal=days.on_rows(oracle)).drop_nulls(),
        volatility=keys.with_columns(volatility=days.on_rows(sigma)).drop_nulls(),
        drift=pl.DataFrame({"date": panel.dates}).with_columns(drift=pl.lit(1.0)),
        oracle_r2=float(r2),
        realised_oracle_r2=float(1 - (error**2).sum() / (outcome**2).sum()),
        recipe=recipe,
    )


def flip_returns(panel: Panel, signs: Array) -> Panel:
    """Return the panel with each log return times the sign of the date on which it ends.

    Parameters
    ----------
    panel
        First prices stay; so do columns other than the price.
    signs
        (D,) of 1 and -1, one for each of ``panel.dates``.

    Raises
    ------
    ValueError
        If `signs` has another length or holds anything else.
    """
    signs = np.asarray(signs, dtype=float)
    if signs.shape != (len(panel.dates),) or not np.isin(signs, (-1.0, 1.0)).all():
        raise ValueError(
            f"signs must be 1 or -1, one for each of the {counted(len(panel.dates), 'date')}; got shape "
            f"{signs.shape}."
        )
    days = _OwnDays(panel)
    return Panel(
        days.with_returns(panel, days.returns * signs[days.date]), price=panel.price, name=panel.name
    )


class _OwnDays:
    """A panel laid out by own trading day: (K, A), K the most days of any asset, A assets.

    Attributes
    ----------
    returns : numpy.ndarray
        (K, A) log return that ends on the asset's day, 0 on the first and where there is none.
    date : numpy.ndarray
        (K, A) place of the day in ``panel.dates``, 0 where there is none.
    has_previous, has_next : numpy.ndarray
        (K, A) whether a return ends, or starts, on the day.
    """

    def __init__(self, panel: Panel) -> None:
        self._history = history = History.of(panel)
        asset = np.cumsum(history.age == 0) - 1
        self.place = (history.age, asset)
        self.shape = (int(history.age.max()) + 1, int(asset[-1]) + 1)
        place = panel.dates.search_sorted(panel.frame["date"]).to_numpy()[history.rows]
        self.date = self._spread(place)
        self.has_previous = self._spread(history.age > 0)
        self.has_next = self._spread(history.left > 0)
        self.returns = self._spread(np.where(history.age > 0, history.log_return, 0.0))
        self._start = history.log_price[history.age == 0]

    def _spread(self, values: Array) -> Array:
        out = np.zeros(self.shape, dtype=values.dtype)
        out[self.place] = values
        return out

    def on_rows(self, values: Array) -> pl.Series:
        """Return (K, A) values on the rows of the panel, null without a price or where NaN."""
        return self._history.on_rows(values[self.place])

    def with_returns(self, panel: Panel, returns: Array) -> pl.DataFrame:
        """Return the panel's frame with prices of these log returns, from each asset's first price on."""
        level = np.exp(self._start + np.cumsum(returns, axis=0))
        return panel.frame.with_columns(self.on_rows(level).alias(panel.price))


def _unsealed(panel: Panel) -> Panel:
    until = seal(panel)
    if until is None:
        return panel
    if until <= panel.dates[0]:
        raise ValueError(
            f"every date of {panel.name} is sealed from {until} on. Give rows before that; nothing may be "
            "made from the others."
        )
    return panel[: until - dt.timedelta(days=1)]


def _signs(generator: np.random.Generator, count: int) -> Array:
    return 2.0 * generator.integers(0, 2, count) - 1.0


def _plant(
    noise: Array, k: float, days: _OwnDays, *, g: Array | None, signal: str, proportional: bool
) -> tuple[Array, Array]:
    """Return planted returns and the signal (K, A), own day by own day: each signal sees the planted past."""
    if g is not None and not proportional:
        oracle = k * g
        returns = noise.copy()
        returns[1:] += np.where(days.has_previous[1:], oracle[:-1], 0.0)
        return returns, oracle
    returns, oracle = noise.copy(), np.zeros_like(noise)
    before = np.zeros(noise.shape[1])
    for day in range(VOLATILITY_WINDOW, len(noise)):
        sigma = _ewma(returns[day - VOLATILITY_WINDOW + 1 : day + 1])
        z = np.tanh(np.divide(returns[day], sigma, out=np.zeros_like(sigma), where=sigma > 0))
        if g is not None:
            value = g[day]
        else:
            value = -z if signal == "reversal" else -z * before
        before = z
        oracle[day] = k * value * (sigma if proportional else 1.0)
        if day + 1 < len(noise):
            returns[day + 1] += np.where(days.has_previous[day + 1], oracle[day], 0.0)
    return returns, oracle


WEIGHTS = 0.5 ** (np.arange(VOLATILITY_WINDOW)[::-1] / VOLATILITY_HALF_LIFE)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def _ewma(window: Array) -> Array:
    return np.sqrt(WEIGHTS @ window**2)


def _volatility(returns: Array, days: _OwnDays) -> Array:
    """Return the causal volatility (K, A), NaN in the first 63 days and where it is 0."""
    views = np.lib.stride_tricks.sliding_window_view(returns[1:] ** 2, VOLATILITY_WINDOW, axis=0)
    sigma = np.full(returns.shape, np.nan)
    sigma[VOLATILITY_WINDOW:] = np.sqrt(views @ WEIGHTS)
    return np.where(sigma > 0, sigma, np.nan)


def _share(oracle: Array, noise: float) -> float:
    signal = float((oracle**2).sum())
    return signal / (signal + noise)


def _solve(share: Callable[[float], float], r2: float) -> float:
    """Return k > 0 with share(k) = r2, by k <- k sqrt(odds wanted / odds got): one step where s is k g."""
    k = 1e-3
    for _ in range(200):
        got = share(k)
        if not 0 < got < 1:
            raise ValueError(
                "the panel is too short for this signal: it needs a known volatility, so more than "
                f"{VOLATILITY_WINDOW} returns of some asset."
            )
        if abs(got / r2 - 1) < TOLERANCE:
            break
        k *= math.sqrt(r2 / (1 - r2) * (1 - got) / got)
    return k
