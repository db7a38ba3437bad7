"""How far a mediator moved: the size of the expected move, without what chance moves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fints.diagnostics import MEDIATORS, Move, manipulation_check, move


def drawn(generator: np.random.Generator, expected: np.ndarray, noise: float, panels: int) -> tuple:
    """A mediator of `panels` clusters without and with a move whose expected logarithm is `expected`."""
    before = np.exp(generator.normal(0, 1, (panels, len(expected))))
    moved = expected + generator.normal(0, noise, before.shape)
    return before.tolist(), (before * np.exp(moved)).tolist()


def test_a_move_by_the_same_factor_everywhere_is_that_factor() -> None:
    before, after = drawn(np.random.default_rng(0), np.full(12, math.log(1.7)), 0.0, 5)
    found = move(before, after)
    assert (found.size, found.low, found.high, found.mean) == pytest.approx((0.7, 0.7, 0.7, 0.7))
    back = move(after, before)
    assert back.size == pytest.approx(0.7)
    assert back.mean == pytest.approx(1 / 1.7 - 1)


def test_what_chance_moves_does_not_count() -> None:
    """The mean square of what chance moves is 0.09; of the estimates it is 0 within four errors."""
    generator = np.random.default_rng(1)
    squares = []
    for _ in range(400):
        before, after = drawn(generator, np.zeros(6), 0.3, 4)
        x = np.log(np.array(after) / np.array(before))
        products = x @ x.T / 6
        squares.append((products.sum() - np.trace(products)) / 12)
        size = move(before, after).size
        assert size == pytest.approx(math.expm1(math.sqrt(max(squares[-1], 0.0))))
    mean, error = np.mean(squares), np.std(squares) / 20
    assert abs(mean) < 4 * error
    assert error < 0.09 / 20


def test_the_interval_holds_the_expected_move_as_often_as_it_says() -> None:
    generator = np.random.default_rng(2)
    expected = np.array([0.5, 0.2, -0.3, 0.4])
    true = math.expm1(math.sqrt(float((expected**2).mean())))
    found = [move(*drawn(generator, expected, 0.2, 8)) for _ in range(400)]
    covered = np.mean([one.low <= true <= one.high for one in found])
    assert 0.9 < covered < 0.99
    assert np.mean([one.mean for one in found]) == pytest.approx(math.expm1(0.2), abs=0.01)


def test_a_mediator_that_may_be_negative_is_compared_with_its_mean_or_the_least_of_interest() -> None:
    before, after = [[0.02], [-0.01], [0.05]], [[0.01], [-0.02], [0.04]]
    assert move(before, after, least=0.001).size == pytest.approx(0.5)
    assert move(before, after, least=0.1).size == pytest.approx(0.1)
    assert move(before, after, least=0.1).mean == pytest.approx(-0.1)
    assert math.isnan(move(before, after).size)


def test_one_cluster_has_a_size_and_no_interval() -> None:
    found = move([[1.0, 1.0]], [[2.0, 0.5]])
    assert found.size == pytest.approx(1.0)
    assert found.mean == pytest.approx(0.0)
    assert math.isnan(found.low)
    with pytest.raises(ValueError, match="as many numbers before as after"):
        move([[1.0, 1.0]], [[2.0]])


def moves(**sizes: float) -> dict[str, Move]:
    return {
        name: Move(size=abs(value), low=0.0, high=9.0, mean=value)
        for name in (one for names in MEDIATORS.values() for one in names)
        for value in (sizes.get(name, 0.0),)
    }


def test_a_check_asks_for_the_aim_in_the_deep_network_and_for_nothing_else_in_the_reference() -> None:
    passed = manipulation_check(
        moves(effective_rank=0.6, gradient_norm=3.0), moves(effective_rank=0.2), cause="representation"
    )
    assert passed.passed, passed.reason
    weak = manipulation_check(moves(effective_rank=0.4), moves(), cause="representation")
    assert not weak.passed
    assert "too little moved in the deep network: effective_rank 40% (on average +40%)" in weak.reason
    astray = manipulation_check(moves(effective_rank=0.6), moves(output_change=-0.2), cause="representation")
    assert not astray.passed
    assert astray.reason == "moved in the reference too: output_change 20% (on average -20%)"


def test_a_relief_that_moves_its_mediator_the_wrong_way_does_not_pass() -> None:
    for name, wrong in (("effective_rank", -0.6), ("centred_cosine", 0.6)):
        assert not manipulation_check(moves(**{name: wrong}), moves(), cause="representation").passed
        assert manipulation_check(moves(**{name: -wrong}), moves(), cause="representation").passed
    for either in (-0.6, 0.6):
        assert manipulation_check(moves(gradient_norm=either), moves(), cause="gradient").passed


def test_what_was_not_measured_fails_a_check() -> None:
    reference = moves()
    del reference["gradient_norm"]
    found = manipulation_check(moves(effective_rank=0.6), reference, cause="representation")
    assert found.reason == "not measured in the reference: gradient_norm"
    assert manipulation_check({}, moves(), cause="noise").reason == "not measured"
    with pytest.raises(ValueError, match="unknown cause 'depth'"):
        manipulation_check(moves(), moves(), cause="depth")
