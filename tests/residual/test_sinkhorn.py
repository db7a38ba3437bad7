"""Sinkhorn's iteration and permutations: what is doubly stochastic, how nearly, and the gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fints.residual.sinkhorn import permutation_matrices, sinkhorn


def literal(logits: Tensor, iterations: int) -> Tensor:
    """exp, then columns and rows divided by their sums in turn, entry by entry (n, n)."""
    n = len(logits)
    m = [[math.exp(logits[i, j].item()) for j in range(n)] for i in range(n)]
    for _ in range(iterations):
        columns = [sum(m[i][j] for i in range(n)) for j in range(n)]
        m = [[m[i][j] / columns[j] for j in range(n)] for i in range(n)]
        rows = [sum(m[i][j] for j in range(n)) for i in range(n)]
        m = [[m[i][j] / rows[i] for j in range(n)] for i in range(n)]
    return torch.tensor(m, dtype=torch.float64)


def logits_of(std: float, n: int = 4, count: int = 1000, dtype=torch.float64) -> Tensor:
    return (std * torch.randn(count, n, n, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_it_is_the_alternate_division_by_sums(n, iterations):
    logits = logits_of(2.0, n, count=6).view(2, 3, n, n)
    expected = torch.stack([literal(each, iterations) for each in logits.view(6, n, n)]).view(2, 3, n, n)
    assert_close(sinkhorn(logits, iterations), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("std", [0.5, 2.0, 8.0, 50.0])
def test_rows_sum_to_one_whatever_the_logits(std, dtype, tolerance):
    mixed = sinkhorn(logits_of(std, dtype=dtype), 20)
    assert mixed.min() >= 0
    assert (mixed.sum(-1) - 1).abs().max() <= tolerance


def test_columns_sum_to_one_only_as_far_as_the_iterations_go():
    small = sinkhorn(logits_of(0.5, dtype=torch.float32), 20)
    assert (small.sum(-2) - 1).abs().max() <= 1e-4
    # Larger logits need more iterations: the test of a column error would be a test of the logits.
    large = logits_of(4.0)
    errors = [(sinkhorn(large, iterations).sum(-2) - 1).abs().max() for iterations in (20, 500)]
    assert errors[0] > 1e-3
    assert errors[1] < errors[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_have_finite_values_and_the_right_gradients(dtype):
    signs = torch.randint(0, 2, (500, 4, 4), generator=torch.Generator().manual_seed(1)) * 2 - 1
    for size in (50.0, 100.0):
        logits = (size * signs + logits_of(1.0, count=500)).to(dtype).requires_grad_()
        weighting = logits_of(1.0, count=500, dtype=dtype)
        (gradient,) = torch.autograd.grad((sinkhorn(logits, 20) * weighting).sum(), logits)
        exact = logits.detach().double().requires_grad_()
        mixed = exact
        for _ in range(20):
            mixed = mixed.log_softmax(-2).log_softmax(-1)
        (expected,) = torch.autograd.grad((mixed.exp() * weighting.double()).sum(), exact)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        assert_close(gradient.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("iterations", [1, 20])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_the_backward_pass_is_that_of_the_iterations(n, iterations):
    logits = logits_of(3.0, n, count=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: sinkhorn(z, iterations), logits)


def test_the_gradient_can_be_differentiated_again():
    logits = logits_of(1.0, 3, count=2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z: sinkhorn(z, 20), logits)


def test_the_gradient_does_not_depend_on_how_the_incoming_one_lies_in_memory():
    logits = logits_of(1.0, count=7).requires_grad_()
    weighting = logits_of(1.0, count=7)
    strided = weighting.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    gradients = [torch.autograd.grad(sinkhorn(logits, 20), logits, each)[0] for each in (weighting, strided)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_permutations_are_all_of_them_once_and_the_identity_first(n):
    matrices = permutation_matrices(n)
    assert matrices.shape == (math.factorial(n), n, n)
    assert torch.equal(matrices[0], torch.eye(n))
    assert len({tuple(each.flatten().tolist()) for each in matrices}) == math.factorial(n)
    assert torch.equal(matrices.sum(-1), torch.ones(len(matrices), n))
    assert torch.equal(matrices.sum(-2), torch.ones(len(matrices), n))
    assert set(matrices.unique().tolist()) <= {0.0, 1.0}
