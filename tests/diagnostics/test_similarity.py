from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fints.diagnostics import (
    centred,
    effective_rank,
    mean_cosine,
    null_cosine,
    relative_size,
    token_cosine,
)

WIDTH = 512


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_random_walk_returns_its_null_curve():
    """Independent increments of equal length: sqrt(k / (k + 1)) within 0.01 at D = 512."""
    increments = torch.nn.functional.normalize(_normal(30, 400, WIDTH), dim=-1)
    walk = increments.cumsum(0)
    for k in range(1, 30):
        assert mean_cosine(walk[k - 1], walk[k]).item() == pytest.approx(null_cosine(k), abs=0.01)
        assert relative_size(increments[k], walk[k - 1]).item() == pytest.approx(1 / math.sqrt(k), abs=0.02)
        assert mean_cosine(increments[k - 1], increments[k]).item() == pytest.approx(0, abs=0.01)


def test_a_walk_that_is_normed_at_each_step_returns_the_null_of_a_normed_trunk():
    increments = torch.nn.functional.normalize(_normal(30, 400, WIDTH), dim=-1)
    trunk = increments[0]
    for k in range(1, 30):
        before, trunk = trunk, torch.nn.functional.normalize(trunk + increments[k], dim=-1)
        found = mean_cosine(before, trunk).item()
        assert found == pytest.approx(null_cosine(k, normalises_trunk=True), abs=0.01)


def test_the_null_curve_has_the_values_of_the_literature():
    assert [round(null_cosine(k), 3) for k in (1, 4, 9, 25)] == [0.707, 0.894, 0.949, 0.981]
    with pytest.raises(ValueError, match="start at sublayer 1"):
        null_cosine(0)


def test_a_shared_mean_raises_the_raw_token_cosine_and_not_the_centred_one():
    tokens = _normal(8, 50, WIDTH) + 3 * _normal(WIDTH, seed=1)
    assert token_cosine(tokens).item() == pytest.approx(0.9, abs=0.02)
    assert token_cosine(centred(tokens)).item() == pytest.approx(0, abs=0.01)


def test_white_data_fill_their_space_and_a_shared_mean_takes_nothing_from_it():
    white = _normal(64, 64, 32)
    assert 0.9 * 32 <= effective_rank(white).item() <= 32
    shifted = white + 100 * _normal(32, seed=1)
    assert effective_rank(shifted).item() == pytest.approx(effective_rank(white).item(), rel=1e-3)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_the_effective_rank_counts_equal_directions(rank):
    """Tokens +-e_1 ... +-e_r have r equal singular values, and mean zero."""
    basis = torch.linalg.qr(_normal(20, 20).double())[0][:rank]
    assert effective_rank(torch.cat((basis, -basis)).repeat(5, 1)).item() == pytest.approx(rank, rel=1e-6)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (2, 20, 8)])
def test_the_effective_rank_is_the_entropy_of_the_singular_values(shape):
    tokens = _normal(*shape) * torch.linspace(0.1, 2, shape[-1])
    flat = tokens.reshape(-1, shape[-1]).double()
    singular = torch.linalg.svdvals(flat - flat.mean(0))
    share = singular[singular > 1e-9 * singular.max()]
    share = share / share.sum()
    literal = math.exp(-(share * share.log()).sum())
    assert effective_rank(tokens).item() == pytest.approx(literal, rel=1e-4)


def test_cosines_equal_their_loops_and_do_not_depend_on_scale():
    a, b = _normal(3, 4, 5), _normal(3, 4, 5, seed=1)
    cosine = torch.nn.functional.cosine_similarity
    assert mean_cosine(a, b).item() == pytest.approx(cosine(a, b, dim=-1).mean().item(), rel=1e-5)
    assert mean_cosine(7 * a, 0.1 * b).item() == pytest.approx(mean_cosine(a, b).item(), rel=1e-5)
    flat = a.reshape(-1, 5)
    pairs = [cosine(flat[i], flat[j], dim=0).item() for i in range(12) for j in range(12) if i != j]
    assert token_cosine(a).item() == pytest.approx(sum(pairs) / len(pairs), rel=1e-4)
    torch.testing.assert_close(centred(a).mean(0), torch.zeros(5), rtol=0, atol=1e-6)


def test_tokens_of_length_zero_have_no_direction_and_are_left_out():
    a, b = _normal(6, 5), _normal(6, 5, seed=1)
    a[0] = b[1] = 0
    assert mean_cosine(a, b).item() == pytest.approx(mean_cosine(a[2:], b[2:]).item(), rel=1e-6)
    assert token_cosine(a).item() == pytest.approx(token_cosine(a[1:]).item(), rel=1e-5)
    assert relative_size(a, b).isfinite()
    assert mean_cosine(torch.zeros(3, 5), b[:3]).isnan()
    assert token_cosine(a[:2]).isnan()


def test_collapsed_tokens_have_no_rank_and_not_that_of_their_rounding():
    token = 10 * _normal(1, 64)
    collapsed = token.expand(200, 64) * (1 + 1e-7 * _normal(200, 1))
    assert effective_rank(collapsed).isnan()
    assert token_cosine(centred(collapsed)).isnan()
    assert token_cosine(collapsed).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_makes_a_measure_undefined_and_not_wrong(bad):
    a, b = _normal(6, 5), _normal(6, 5, seed=1)
    a[2, 3] = bad
    assert not mean_cosine(a, b).isfinite()
    assert not token_cosine(a).isfinite()
    assert not effective_rank(a).isfinite()
