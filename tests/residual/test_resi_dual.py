"""ResiDual: its equation, and the two trunks that it is made of."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_resi_dual_is_its_equation(network, x, literal_norm, norm):
    net = network("resi_dual", random=True, norm=norm)
    x_ln, x_d = x, x
    for norm_k, branch in zip(net.residual.norms, net.branches, strict=True):
        f = branch(x_ln)
        x_ln, x_d = literal_norm(norm_k, x_ln + f), x_d + f
    assert_close(net(x), x_ln + literal_norm(net.residual.final_norm, x_d), rtol=0, atol=1e-12)


def test_one_trunk_is_post_norm_and_the_other_the_plain_sum(network, x):
    net, post_norm = network("resi_dual", random=True), network("post_norm", random=True)
    expected, outputs = post_norm.states(x), []
    state = net.residual.open(x)
    for k, branch in enumerate(net.branches):
        state = net.residual.step(state, k, lambda u, branch=branch: outputs.append(branch(u)) or outputs[-1])
        assert torch.equal(state[0], expected[k + 1])
        assert torch.equal(net.residual.merge(state, k + 1), state[0])
        assert_close(state[1] - x, torch.stack(outputs).sum(0), rtol=0, atol=1e-12)
