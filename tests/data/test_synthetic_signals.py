"""Signals: each is its equation, has variance 1, and sees the past alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fints.data.synthetic_signals import (
    MEMORY,
    MOST_LINKS,
    OFFSET,
    SIGNALS,
    draw_drift,
    memory_chain,
    planted_g,
)


def drawn(days: int, assets: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.random.default_rng(seed).standard_normal((2, days, assets))
    return a, b


@pytest.mark.parametrize("links", [1, 2, 3, 5])
def test_the_memory_chain_is_its_equation_up_to_the_scale_of_each_link(links):
    a, b = drawn(40, 2, 0)
    h = a
    for link in range(1, links + 1):
        carrier, before = (b if link % 2 else a), memory_chain(a, b, links=link - 1) if link > 1 else a
        np.testing.assert_allclose(before, h, atol=1e-12)
        raw = np.empty_like(a)
        for t in range(40):
            for i in range(2):
                memory = math.sqrt(1 - MEMORY**2) * sum(
                    MEMORY ** (j - 1) * before[t - j, i] for j in range(1, t + 1)
                )
                raw[t, i] = carrier[t, i] * (OFFSET + math.tanh(2 * memory))
        made = memory_chain(a, b, links=link)
        ratio = made / raw
        np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-9)
        h = made


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("depth_demand", [1, 2, 4, MOST_LINKS])
def test_every_signal_has_mean_zero_and_variance_one(signal, depth_demand):
    a, b = drawn(1400, 300, 1)
    g = planted_g(signal, a, b, depth_demand=depth_demand)[100:]
    # Columns are independent, days of one are not.
    for moment, wanted in ((g, 0.0), (g**2, 1.0)):
        by_column = moment.mean(axis=0)
        error = by_column.std(ddof=1) / math.sqrt(len(by_column))
        assert error < 0.01
        assert abs(by_column.mean() - wanted) < 4 * error


@pytest.mark.parametrize("signal", SIGNALS)
def test_no_signal_sees_the_future_or_another_asset(signal):
    a, b = drawn(60, 3, 2)
    g = planted_g(signal, a, b).copy()
    for x in (a, b):
        x[40:, :] = 1e6
    np.testing.assert_array_equal(planted_g(signal, a, b)[:40], g[:40])
    a, b = drawn(60, 3, 2)
    a[:, 1], b[:, 1] = -5.0, 7.0
    changed = planted_g(signal, a, b)
    np.testing.assert_array_equal(changed[:, [0, 2]], g[:, [0, 2]])


def test_a_link_knows_nothing_of_today_but_its_carrier():
    a, b = drawn(50, 2, 3)
    for links, carrier in ((1, 1), (2, 0), (3, 1)):
        base = memory_chain(a, b, links=links)
        features = [a.copy(), b.copy()]
        features[1 - carrier][-1] += 3.0
        np.testing.assert_array_equal(memory_chain(*features, links=links), base)
        features[carrier][-1] *= 2.0
        np.testing.assert_allclose(memory_chain(*features, links=links)[-1], 2 * base[-1])


def test_from_two_links_on_products_of_the_carrier_with_lines_of_the_past_reach_no_more_than_the_offset():
    """A block without a block before it has memories of the features and of their product, day by day."""
    reached = []
    a, b = drawn(300, 300, 4)
    for links in (1, 2, 3):
        g = memory_chain(a, b, links=links)[100:]
        carrier = (b if links % 2 else a)[100:]
        past = [x[100 - k : 300 - k] for x in (a, b) for k in range(1, 13)]
        past += [p * q for p, q in zip(past[:12], past[12:], strict=True)]
        design = np.column_stack([carrier.ravel(), *((carrier * p).ravel() for p in past)])
        fitted = design @ np.linalg.lstsq(design, g.ravel(), rcond=None)[0]
        reached.append(1 - ((g.ravel() - fitted) ** 2).sum() / (g**2).sum())
    assert reached[0] > 0.8
    assert 0.04 < reached[1] < 0.12
    assert 0.04 < reached[2] < 0.12


def test_drifts_have_mean_square_one_and_break_where_told():
    generator = np.random.default_rng(5)
    constant = draw_drift(generator, 100, "constant", break_at=0.5, factor=-1.0)
    assert (constant == 1).all()
    for factor in (-1.0, 0.0, 0.3):
        broken = draw_drift(generator, 1000, "broken", break_at=0.3, factor=factor)
        assert (broken**2).mean() == pytest.approx(1)
        assert (broken[:300] == broken[0]).all()
        np.testing.assert_allclose(broken[300:], factor * broken[0])
    slow = draw_drift(generator, 100_000, "slow", break_at=0.5, factor=-1.0)
    assert (slow**2).mean() == pytest.approx(1)
    assert slow.mean() ** 2 == pytest.approx(1 / 1.25, abs=0.05)
    x = slow - slow.mean()
    assert (x[250:] * x[:-250]).mean() / (x**2).mean() == pytest.approx(0.5, abs=0.1)
