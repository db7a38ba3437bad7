"""Admin: its equation, and the constants that it measures."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_admin_is_its_equation(network, x, literal_norm, norm):
    net = network("admin", random=True, norm=norm)
    h = x
    for k, branch in enumerate(net.branches):
        h = literal_norm(net.residual.norms[k], net.residual.omega[k] * h + branch(h))
    assert_close(net(x), h, rtol=0, atol=1e-12)


def test_before_it_is_calibrated_it_is_post_norm_bit_for_bit(network, x):
    assert torch.equal(network("admin")(x), network("post_norm")(x))


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_omega_is_the_root_of_the_variances_before_it_in_one_pass(network, x, literal_norm, norm):
    net = network("admin", random=True, norm=norm)
    residual = net.residual
    h, total, expected = x, 1.0, []
    for norm_k, branch in zip(residual.norms, net.branches, strict=True):
        omega = total**0.5
        expected.append(omega)
        y = branch(h)
        h = literal_norm(norm_k, omega * h + y)
        total = total + ((y - y.mean()) ** 2).mean().item()
    residual.calibrate(x, list(net.branches))
    assert expected[0] == 1
    assert expected == sorted(expected)
    assert expected[-1] > 2
    for omega, value in zip(residual.omega, expected, strict=True):
        assert_close(omega, torch.full((16,), value, dtype=x.dtype), rtol=0, atol=1e-12)


def test_branches_of_unit_variance_give_the_root_of_the_sublayers_number(network, x):
    residual = network("admin").residual
    generator = torch.Generator().manual_seed(5)

    def unit(u):
        y = torch.randn(u.shape, dtype=u.dtype, generator=generator)
        return 7 + (y - y.mean()) / y.std(correction=0)

    residual.calibrate(x, [unit] * 8)
    for number, omega in enumerate(residual.omega, start=1):
        assert_close(omega, torch.full((16,), number**0.5, dtype=x.dtype), rtol=0, atol=1e-6)


def test_calibrating_again_measures_the_same(network, x):
    net = network("admin")
    net.residual.calibrate(x, list(net.branches))
    first = [omega.clone() for omega in net.residual.omega]
    assert all(omega.requires_grad for omega in net.residual.omega)
    net.residual.calibrate(x, list(net.branches))
    assert all(torch.equal(*pair) for pair in zip(first, net.residual.omega, strict=True))


def test_what_was_measured_is_in_the_state_dict(network, x):
    for name in ("admin", "frozen_scale_post_norm"):
        net, fresh = network(name), network(name)
        net.residual.calibrate(x, list(net.branches))
        assert not torch.equal(net(x), fresh(x))
        fresh.load_state_dict(net.state_dict())
        assert torch.equal(net(x), fresh(x))
