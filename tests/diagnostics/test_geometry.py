"""Ranks and kernel alignment of the tokens of sites."""

from __future__ import annotations

import pytest
import torch

from fints.diagnostics.kernel_alignment import linear_cka, unbiased_hsic, without_first_direction
from fints.diagnostics.similarity import effective_rank
from fints.diagnostics.spectrum import participation_ratio, singular_values, stable_rank


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(width, seed=9):
    return torch.linalg.qr(tokens(width, width, seed=seed)).Q


def test_ranks_are_their_definitions():
    z = tokens(4, 5, 6) @ tokens(6, 6, seed=1) + 3
    flat = z.reshape(-1, 6)
    s = torch.linalg.svdvals(flat - flat.mean(0))
    torch.testing.assert_close(singular_values(z), s, rtol=1e-7, atol=0)
    assert participation_ratio(z).item() == pytest.approx(((s**2).sum() ** 2 / (s**4).sum()).item())
    assert stable_rank(z).item() == pytest.approx(((s**2).sum() / s[0] ** 2).item())


@pytest.mark.parametrize("measure", [effective_rank, participation_ratio, stable_rank])
def test_a_rank_counts_directions_whatever_their_place_scale_or_orientation(measure):
    corners = torch.cat([torch.eye(4), -torch.eye(4)]).double()
    wide = torch.nn.functional.pad(corners, (0, 3))
    assert measure(wide).item() == pytest.approx(4)
    assert measure(5 * wide @ rotation(7) + tokens(7)).item() == pytest.approx(4, rel=1e-6)
    line = tokens(20, 1) @ tokens(1, 7, seed=2)
    assert measure(line).item() == pytest.approx(1, abs=1e-5)
    assert measure(torch.ones(5, 3)).isnan()


def test_hsic_is_its_definition_with_kernels_written_out():
    x, y = tokens(9, 4), tokens(9, 3, seed=1)
    k, m = x @ x.T, y @ y.T
    k.fill_diagonal_(0)
    m.fill_diagonal_(0)
    one = torch.ones(9, dtype=torch.float64)
    middle = (one @ k @ one) * (one @ m @ one) / (8 * 7)
    literal = (torch.trace(k @ m) + middle - 2 / 7 * one @ k @ m @ one) / (9 * 6)
    assert unbiased_hsic(x, y).item() == pytest.approx(literal.item())


def test_cka_is_one_for_the_same_geometry_and_blind_to_rotation_scale_and_place():
    x, y = tokens(40, 6), tokens(40, 5, seed=1)
    assert linear_cka(x, 3 * x @ rotation(6) + 2).item() == pytest.approx(1)
    assert linear_cka(x, y).item() == pytest.approx(linear_cka(x @ rotation(6), 7 * y - 1).item())
    assert linear_cka(x, torch.ones(40, 2)).isnan()


def test_cka_of_independent_sites_is_zero_on_average_where_the_biased_one_is_not():
    """D is not small beside N: the biased estimator gives about D / (N + D) here."""
    values, biased = [], []
    for seed in range(200):
        x, y = tokens(20, 10, seed=2 * seed), tokens(20, 10, seed=2 * seed + 1)
        values.append(linear_cka(x, y).item())
        a, b = x - x.mean(0), y - y.mean(0)
        biased.append(((a.T @ b).norm() ** 2 / (a.T @ a).norm() / (b.T @ b).norm()).item())
    mean, spread = torch.tensor(values).mean(), torch.tensor(values).std()
    assert abs(mean) < 3 * spread / 200**0.5
    assert sum(biased) / 200 > 0.3


def test_what_is_left_without_the_first_direction_is_orthogonal_to_it():
    z = tokens(30, 5)
    z[:, 0] *= 50
    rest = without_first_direction(z)
    whole = torch.linalg.svdvals(z - z.mean(0))
    torch.testing.assert_close(torch.linalg.svdvals(rest)[:4], whole[1:])
    first, second = tokens(30, 5, seed=3), tokens(30, 5, seed=4)
    shared = 50 * tokens(30, 1, seed=5)
    a, b = torch.cat([first, shared], 1), torch.cat([second, shared], 1)
    assert linear_cka(a, b) > 0.99
    assert linear_cka(without_first_direction(a), without_first_direction(b)) < 0.2


def test_too_few_tokens_for_cka_are_refused():
    with pytest.raises(ValueError, match="at least four; got 3 and 3"):
        linear_cka(tokens(3, 2), tokens(3, 2))
