"""A norm on the branch's output: equations, and what it makes impossible."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

NAMES = ["sandwich_norm", "peri_ln"]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_normed_output_is_its_equation(network, x, literal_norm, name, norm):
    net = network(name, random=True, norm=norm)
    residual = net.residual
    h = x if name == "sandwich_norm" else literal_norm(residual.embedding_norm, x)
    for k, branch in enumerate(net.branches):
        y = branch(literal_norm(residual.norms[k], h))
        h = h + literal_norm(residual.output_norms[k], y)
    assert_close(net(x), literal_norm(residual.final_norm, h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_scale_of_a_branchs_last_map_does_not_matter(network, x, name):
    net = network(name, random=True, norm_eps=0.0)
    before = net(x)
    for k, branch in enumerate(net.branches):
        with torch.no_grad():
            branch[2].weight *= 0.1 + k
            branch[2].bias *= 0.1 + k
    assert_close(net(x), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_each_sublayer_adds_a_unit_of_standard_deviation_at_most(network, x, name):
    net = network(name)
    states = net.states(x)
    start = states[0].std(-1, correction=0)
    for k, (before, after) in enumerate(pairwise(states), start=1):
        increment = after - before
        assert_close(increment.var(-1, correction=0), torch.ones(3, 5, dtype=x.dtype), rtol=0, atol=1e-9)
        assert (after.std(-1, correction=0) <= start + k + 1e-9).all()


def test_peri_ln_does_not_see_the_scale_of_its_embedding(network, x):
    net = network("peri_ln", random=True, norm_eps=0.0)
    assert_close(net(100 * x), net(x), rtol=0, atol=1e-10)
    sandwich = network("sandwich_norm", random=True, norm_eps=0.0)
    assert not torch.isclose(sandwich(100 * x), sandwich(x)).all(-1).any()
