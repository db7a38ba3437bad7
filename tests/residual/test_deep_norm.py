"""DeepNorm: its equation and its constants. Which weights beta scales: tests/model/test_branch_scale.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fints.residual import build_residual

CONSTANTS = [
    (4, 1.6817928, 0.4204482),
    (6, 1.8612097, 0.3799178),
    (8, 2.0, 0.3535534),
    (12, 2.2133638, 0.3194715),
    (24, 2.6321480, 0.2686424),
    (32, 2.8284271, 0.25),
    (48, 3.1301692, 0.2259005),
    (100, 3.7606031, 0.1880302),
]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("num_sublayers", [2, 8])
def test_deep_norm_is_its_equation(network, x, literal_norm, num_sublayers, norm):
    net = network("deep_norm", num_sublayers=num_sublayers, random=True, norm=norm)
    alpha = num_sublayers**0.25
    h = x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        h = literal_norm(norm_k, alpha * h + branch(h))
    assert_close(net(x), h, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("num_blocks", "alpha", "beta"), CONSTANTS)
def test_the_constants_are_the_papers_by_the_number_of_blocks(num_blocks, alpha, beta):
    residual = build_residual("deep_norm", width=4, num_sublayers=2 * num_blocks)
    assert residual.alpha == pytest.approx(alpha, abs=1e-6)
    assert residual.beta == pytest.approx(beta, abs=1e-6)


def test_with_alpha_one_it_is_post_norm_bit_for_bit(network, x):
    net, post_norm = network("deep_norm", random=True), network("post_norm", random=True)
    assert not torch.isclose(net(x), post_norm(x)).all(-1).any()
    net.residual.alpha = 1.0
    assert torch.equal(net(x), post_norm(x))


def test_a_branch_that_does_not_say_what_it_writes_through_is_refused():
    residual = build_residual("deep_norm", width=4, num_sublayers=2)
    with pytest.raises(ValueError, match=r"Linear does not say which they are.*written_weights\(\)"):
        residual.init_branch(nn.Linear(4, 4), 0)
