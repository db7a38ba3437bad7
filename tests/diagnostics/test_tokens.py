"""Each measure as its definition, written out in loops on random tokens; nulls; what must not change it."""

from __future__ import annotations

import math

import pytest
import torch

from fints.diagnostics import null_cosine
from fints.diagnostics.averages import by_position, over_series
from fints.diagnostics.tokens import (
    angular_distance,
    centred_tokens,
    cosines,
    dirichlet,
    log_log_slope,
    random_pair_cosine,
    relative_sizes,
    sizes,
    squared_cosine,
    window_cosine,
    window_share,
    z_scored,
)


@pytest.fixture
def z():
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5


@pytest.fixture
def other():
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def cosine(a, b):
    return float(a @ b / a.norm() / b.norm())


def test_cosine_angle_and_sizes_are_their_definitions(z, other):
    for b in range(3):
        for t in range(4):
            c = cosine(z[b, t], other[b, t])
            assert cosines(z, other)[b, t].item() == pytest.approx(c)
            assert angular_distance(z, other)[b, t].item() == pytest.approx(math.acos(c) / math.pi)
            ratio = (z[b, t].norm() / other[b, t].norm()).item()
            assert relative_sizes(z, other)[b, t].item() == pytest.approx(ratio)
            assert sizes(z)[b, t].item() == pytest.approx(z[b, t].square().mean().sqrt().item())


def test_the_angle_of_a_token_with_itself_is_zero_and_with_its_opposite_one(z):
    assert angular_distance(z, 3 * z).max() < 1e-15
    torch.testing.assert_close(angular_distance(z, -z), torch.ones(3, 4, dtype=torch.float64))


def test_token_cosines_are_means_over_all_pairs_within_a_window_or_between_windows(z):
    within = [[cosine(z[b, t], z[b, s]) for t in range(4) for s in range(4) if s != t] for b in range(3)]
    between = [
        cosine(z[b, t], z[c, s])
        for b in range(3)
        for c in range(3)
        if b != c
        for t in range(4)
        for s in range(4)
    ]
    assert window_cosine(z).tolist() == pytest.approx([sum(row) / len(row) for row in within])
    assert random_pair_cosine(z).item() == pytest.approx(sum(between) / len(between))
    flat = centred_tokens(z).reshape(-1, 5)
    squares = [cosine(flat[i], flat[j]) ** 2 for i in range(12) for j in range(12) if i != j]
    assert squared_cosine(z).item() == pytest.approx((sum(squares) / len(squares)) ** 0.5)


def test_a_zero_token_has_no_direction_and_is_left_out(z):
    z[1, 2] = 0
    assert cosines(z, z)[1, 2].isnan()
    kept = [cosine(z[1, t], z[1, s]) for t in (0, 1, 3) for s in (0, 1, 3) if s != t]
    assert window_cosine(z)[1].item() == pytest.approx(sum(kept) / 6)
    assert over_series(cosines(z, z)).item() == pytest.approx(1)


def test_z_scored_tokens_have_mean_zero_and_unit_spread_in_every_dimension(z):
    z[..., 3] = 7.0
    scored = z_scored(100 * z).reshape(-1, 5)
    assert scored[:, 3].abs().max() == 0
    torch.testing.assert_close(scored.mean(0), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)
    kept = scored[:, [0, 1, 2, 4]].square().mean(0)
    torch.testing.assert_close(kept, torch.ones(4, dtype=torch.float64))


def test_one_large_dimension_makes_a_raw_cosine_and_no_z_scored_one():
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(8, 16, 32, generator=generator) for _ in range(2))
    shared = 100 * torch.randn(8, 16, generator=generator)
    a[..., 0], b[..., 0] = shared, shared
    assert cosines(a, b).mean() > 0.9
    assert cosines(z_scored(a), z_scored(b)).mean() < 0.1


def test_dirichlet_is_the_mean_squared_distance_and_zero_for_equal_tokens(z):
    energy = [sum(float((z[b, t] - z[b].mean(0)).square().sum()) for t in range(4)) / 4 for b in range(3)]
    whole = [float(z[b].square().sum()) / 4 for b in range(3)]
    assert dirichlet(z, normalised=False).tolist() == pytest.approx(energy)
    shares = [e / w for e, w in zip(energy, whole, strict=True)]
    assert dirichlet(z, normalised=True).tolist() == pytest.approx(shares)
    assert dirichlet(7 * z, normalised=True).tolist() == pytest.approx(shares)
    assert dirichlet(z[:, :1].expand(3, 4, 5), normalised=True).abs().max() < 1e-15


def test_the_share_within_windows_is_that_of_the_spread_and_blind_to_what_all_tokens_share(z):
    middle = z.flatten(0, 1).mean(0)
    within = sum(float((z[b, t] - z[b].mean(0)).square().sum()) for b in range(3) for t in range(4))
    whole = sum(float((z[b, t] - middle).square().sum()) for b in range(3) for t in range(4))
    assert window_share(z).item() == pytest.approx(within / whole)
    assert window_share(3 * z + 100).item() == pytest.approx(within / whole)
    # A window's tokens pulled halfway to their mean: a quarter of the spread within is left.
    pulled = (z + z.mean(1, keepdim=True)) / 2
    assert window_share(pulled).item() == pytest.approx(within / 4 / (whole - 0.75 * within))
    assert window_share(z[:, :1].expand(3, 4, 5)).item() < 1e-15
    assert window_share(torch.ones(3, 4, 5)).isnan()


def test_for_tokens_of_equal_length_dirichlet_is_one_less_their_mean_cosine(z):
    unit = z / z.norm(dim=-1, keepdim=True)
    expected = (1 - window_cosine(unit)) * 3 / 4
    torch.testing.assert_close(dirichlet(unit, normalised=True), expected)


def test_the_nulls_hold_for_independent_terms():
    """Cosine sqrt(k / (k + 1)), relative update 1 / sqrt(k + 1), slope 1/2, increments orthogonal."""
    generator = torch.Generator().manual_seed(3)
    terms = torch.randn(26, 64, 8, 256, generator=generator)
    trunks = terms.cumsum(0)
    for k in (1, 4, 9, 24):
        assert cosines(trunks[k - 1], trunks[k]).mean().item() == pytest.approx(null_cosine(k), abs=0.01)
        update = relative_sizes(terms[k + 1], trunks[k]).mean().item()
        assert update == pytest.approx(1 / math.sqrt(k + 1), rel=0.02)
        assert cosines(terms[k], terms[k + 1]).mean().abs() < 0.01
    slope = log_log_slope(torch.stack([sizes(trunk).mean() for trunk in trunks]))
    assert slope.item() == pytest.approx(0.5, abs=0.01)
    assert squared_cosine(terms[0]).item() == pytest.approx(1 / 16, rel=0.02)
    assert angular_distance(terms[0], terms[1]).mean().item() == pytest.approx(0.5, abs=0.005)


def test_a_trunk_of_terms_that_all_point_one_way_grows_with_slope_one():
    assert log_log_slope(torch.arange(1.0, 9.0)).item() == pytest.approx(1)
    assert log_log_slope(torch.ones(8)).item() == pytest.approx(0, abs=1e-12)
    assert log_log_slope(torch.tensor([1.0])).isnan()


def test_each_series_counts_once_however_many_windows_it_has():
    values = torch.tensor([[1.0, 3.0], [5.0, torch.nan], [10.0, 20.0], [torch.nan, torch.nan]])
    series = torch.tensor([7, 7, 2, 9])
    assert over_series(values, series).item() == pytest.approx((3 + 15) / 2)
    assert over_series(values).item() == pytest.approx(39 / 5)
    assert by_position(values, series).tolist() == pytest.approx([(3 + 10) / 2, (3 + 20) / 2])
    with pytest.raises(ValueError, match="each window needs the number of its series; got"):
        over_series(values, torch.tensor([1, 2]))
