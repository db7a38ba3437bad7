"""With the scales of its norms held, a normed trunk is a sum whose parts can be told apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fints.diagnostics.depth_mixing import compose
from fints.diagnostics.normed_trunk import HeldScales, held_scale_mixing
from fints.residual import RESIDUALS, build_residual

WIDTH, NUM_SUBLAYERS = 16, 6
# Here a factor on the branch's output is part of the weight, there of the source.
# No matrix, and weights that depend on the state: not affine in its sources.
DYNAMIC = {"frac_connections"}
FACTOR_INSIDE = {"layer_scale", "peri_ln", "re_zero", "sandwich_norm", "skip_init"}


def scheme(name: str, *, random: bool = True, norm: str = "layer_norm"):
    residual = build_residual(name, width=WIDTH, num_sublayers=NUM_SUBLAYERS, norm=norm).double()
    if random:
        generator = torch.Generator().manual_seed(1)
        for parameter in residual.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)
    return residual


@pytest.fixture(scope="module")
def sources() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(2, 3, WIDTH, dtype=torch.float64, generator=generator) for _ in range(7)]


def run(residual, sources):
    state, states, read = residual.open(sources[0]), [], []
    for layer, y in enumerate(sources[1:]):
        states.append(state)
        read.append(residual.read(state, layer))
        state = residual.step(state, layer, lambda _, y=y: y)
    return torch.stack([*read, residual.merge(state, NUM_SUBLAYERS)], dim=-2), [*states, state]


def matrix_of(residual, sources) -> torch.Tensor | None:
    return compose(residual, run(residual, sources)[1])


def names(*, fixed: bool) -> list[str]:
    """Schemes with a matrix that is the same at every token, or schemes without a matrix."""
    tokens = [torch.ones(1, 2, WIDTH, dtype=torch.float64)] * 7
    found = {name: matrix_of(scheme(name), tokens) for name in RESIDUALS}
    return [
        name
        for name, matrix in found.items()
        if (matrix is not None and matrix.ndim == 2 if fixed else matrix is None)
    ]


@pytest.mark.parametrize("name", sorted({*names(fixed=True)} - FACTOR_INSIDE))
def test_where_weights_are_fixed_it_is_the_matrix_of_the_scheme(name, sources):
    residual = scheme(name)
    found = held_scale_mixing(residual, sources[0], sources[1:])
    matrix = matrix_of(residual, sources)
    torch.testing.assert_close(found, matrix.expand_as(found), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("name", sorted({*names(fixed=False)} - DYNAMIC))
def test_the_parts_of_a_normed_trunk_and_its_biases_are_the_whole(name, norm, sources):
    residual, held = scheme(name, norm=norm), HeldScales()
    whole, _ = run(residual, sources)
    with held:
        torch.testing.assert_close(run(residual, sources)[0], whole, rtol=1e-10, atol=1e-10)
    with held:
        biases, _ = run(residual, [torch.zeros_like(v) for v in sources])
    if norm == "rms_norm":
        assert torch.equal(biases, torch.zeros_like(biases))
    found = held_scale_mixing(residual, sources[0], sources[1:])
    parts = []
    for j, source in enumerate(sources):
        with held:
            alone, _ = run(residual, [v if i == j else torch.zeros_like(v) for i, v in enumerate(sources)])
        parts.append(alone - biases)
        along = (parts[-1] * source.unsqueeze(-2)).sum(-1) / source.square().sum(-1, keepdim=True)
        torch.testing.assert_close(found[..., j], along, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sum(parts) + biases, whole, rtol=1e-9, atol=1e-9)


def test_a_weight_that_depends_on_its_source_has_its_own_derivative(sources):
    residual = scheme("dynamic_hyper_connections")
    found = held_scale_mixing(residual, sources[0], sources[1:])
    fixed = matrix_of(residual, sources)
    assert (found - fixed).abs().max() > 0.01
    held = HeldScales()
    with held:
        run(residual, sources)
    moved = [[(1 + sign * 1e-5) * sources[0], *sources[1:]] for sign in (1, -1)]
    ends = []
    for given in moved:
        with held:
            ends.append(run(residual, given)[0])
    slope = ((ends[0] - ends[1]) / 2e-5 * sources[0].unsqueeze(-2)).sum(-1)
    expected = slope / sources[0].square().sum(-1, keepdim=True)
    torch.testing.assert_close(found[..., 0], expected, rtol=1e-4, atol=1e-5)


def test_post_norm_divides_by_the_scales_between(sources):
    # Centred sources and gains of 1: the matrix form of the paper, B = A_r = w, A_m = 1, w a token.
    given = [v - v.mean(-1, keepdim=True) for v in sources]
    residual = scheme("post_norm", random=False)
    found = held_scale_mixing(residual, given[0], given[1:])
    trunk, kept = given[0], [torch.ones(2, 3, dtype=torch.float64)]
    for layer, y in enumerate(given[1:]):
        torch.testing.assert_close(found[..., layer, : layer + 1], torch.stack(kept, -1))
        w = ((trunk + y).var(-1, correction=0) + 1e-5).rsqrt()
        trunk = w.unsqueeze(-1) * (trunk + y)
        kept = [w * weight for weight in [*kept, torch.ones_like(w)]]
    torch.testing.assert_close(found[..., -1, :], torch.stack(kept, -1))


def test_a_normed_trunk_forgets_half_at_each_output_of_its_own_size():
    residual = build_residual("post_norm", width=4096, num_sublayers=NUM_SUBLAYERS).double()
    generator = torch.Generator().manual_seed(4)
    given = [torch.randn(1, 1, 4096, dtype=torch.float64, generator=generator) for _ in range(7)]
    found = held_scale_mixing(residual, given[0], given[1:])[0, 0]
    for reader in range(7):
        assert float(found[reader, 0]) ** 2 == pytest.approx(2.0**-reader, rel=0.1)


def test_without_holding_the_scales_the_trunk_would_count_for_nothing(sources):
    small = [sources[0], *(0.01 * v for v in sources[1:])]
    residual = scheme("post_norm", random=False)
    held = held_scale_mixing(residual, small[0], small[1:])[..., 1, 0]
    factor = torch.ones((), dtype=torch.float64)

    def second_input(factor):
        return residual.step(residual.open(factor * small[0]), 0, lambda _: small[1])

    up, down = second_input(factor + 1e-6), second_input(factor - 1e-6)
    slope = ((up - down) / 2e-6 * small[0]).sum(-1) / small[0].square().sum(-1)
    assert (slope.abs() < 0.01).all()
    assert (held > 0.5).all()


def test_a_source_that_is_zero_has_no_weight(sources):
    given = [*sources[:3], torch.zeros_like(sources[3]), *sources[4:]]
    found = held_scale_mixing(scheme("post_norm"), given[0], given[1:])
    assert found[..., 3:, 3].isnan().all()
    assert (found[..., :3, 3] == 0).all()
    assert found[..., 4:].isfinite().all()
