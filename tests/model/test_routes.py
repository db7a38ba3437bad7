"""Checkpointed, compiled and lower-precision passes agree with the plain one."""

from __future__ import annotations

import pytest
import torch

from fints.residual import RESIDUALS

# These go through the compiler itself, which takes long: the steps of all are captured below.
COMPILED = ("pre_norm", "dynamic_hyper_connections")
# torch's own tracer does what torch warns of, where a step has an autograd function.
INSTANTIATED = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")


@pytest.fixture(params=list(RESIDUALS))
def residual(request):
    return request.param


def passed(network, call, x):
    """The forecast and every parameter's gradient."""
    network.zero_grad()
    mean = call(x).mean
    mean.square().sum().backward()
    return mean.detach(), {name: p.grad.clone() for name, p in network.named_parameters()}


def test_checkpointing_changes_no_bit(model, x, residual):
    network = model(residual=residual, random=True)
    plain, plain_gradients = passed(network, network, x)
    network.activation_checkpointing = True
    mean, gradients = passed(network, network, x)
    assert torch.equal(mean, plain)
    assert all(torch.equal(gradients[name], g) for name, g in plain_gradients.items())


@pytest.mark.parametrize("below", ["attention_residuals", "pre_norm"])
@pytest.mark.parametrize("above", ["denseformer", "dynamic_hyper_connections"])
def test_checkpointing_takes_a_mixture_whose_parts_have_other_kinds_of_state(model, x, below, above):
    options = {"segments": [[below, 2], [above, 2]]}
    network = model(residual="by_depth", residual_options=options, depth=4, random=True)
    for call in (network, network.compiled()):
        network.activation_checkpointing = False
        plain, plain_gradients = passed(network, call, x)
        network.activation_checkpointing = True
        mean, gradients = passed(network, call, x)
        assert torch.equal(mean, plain)
        assert all(torch.equal(gradients[name], g) for name, g in plain_gradients.items())


def test_checkpointing_replays_dropout(model, x, residual):
    network = model(residual=residual, random=True, dropout=0.3)
    routes = []
    for checkpointed in (False, True):
        network.activation_checkpointing = checkpointed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            routes.append(passed(network, network, x))
    (plain, plain_gradients), (mean, gradients) = routes
    assert torch.equal(mean, plain)
    assert all(torch.equal(gradients[name], g) for name, g in plain_gradients.items())


@INSTANTIATED
@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
def test_the_pass_is_one_graph_with_equal_gradients(model, x, residual, checkpointed):
    network = model(residual=residual, random=True, depth=2)
    network.activation_checkpointing = checkpointed
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    plain, plain_gradients = passed(network, network, x)
    mean, gradients = passed(network, compiled, x)
    torch.testing.assert_close(mean, plain, rtol=1e-5, atol=1e-5)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_float64_agrees_with_float32(model, x, residual):
    network = model(residual=residual, random=True)
    single = network(x).mean
    double = network.double()(x.double()).mean
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


# Without a skip every sublayer passes on the rounding of the one before, and adds its own.
ROUNDING = {"no_skip": 4e-2}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
def test_bfloat16_autocast_is_close_and_finite(model, x, residual, checkpointed):
    network = model(residual=residual, depth=4)
    plain, plain_gradients = passed(network, network, x)
    network.activation_checkpointing = checkpointed

    def autocast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return network(x)

    mean, gradients = passed(network, autocast, x)
    assert mean.dtype == torch.float32
    assert (mean - plain).norm() / plain.norm() < ROUNDING.get(residual, 2e-2)
    assert gradients.keys() == plain_gradients.keys()
    assert [name for name, gradient in gradients.items() if not gradient.isfinite().all()] == []
    ours, theirs = (torch.cat([g.flatten() for g in each.values()]) for each in (gradients, plain_gradients))
    assert (ours - theirs).norm() / theirs.norm() < 5e-2


# torch warns about itself while it imports its own compiler; nothing here calls what it names.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@INSTANTIATED
@pytest.mark.slow
@pytest.mark.parametrize("residual", COMPILED, indirect=True)
def test_compiled_code_agrees_with_the_plain_pass(model, x, residual):
    network = model(residual=residual, random=True, depth=1)
    torch._dynamo.reset()
    plain, plain_gradients = passed(network, network, x)
    mean, gradients = passed(network, torch.compile(network, fullgraph=True), x)
    torch.testing.assert_close(mean, plain, rtol=1e-5, atol=1e-5)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
