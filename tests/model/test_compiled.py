"""The fast pass computes what the plain one does, and what it compiles is used again."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from fints.model import regions
from fints.model.branches import CausalSelfAttention
from fints.model.compiled import CompiledPass
from fints.model.native_branches import attend
from fints.residual import RESIDUALS
from fints.residual.fused import fused

# torch hides this one of its own while it captures a state that is no leaf; as an error it cannot.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

STREAMS = ("static_hyper_connections", "dynamic_hyper_connections", "manifold_hyper_connections")


def passed(network, call, x):
    """The forecast and every parameter's gradient."""
    network.zero_grad()
    mean = call(x).mean
    (mean * torch.linspace(-1, 1, mean.numel()).view_as(mean)).sum().backward()
    return mean.detach(), {
        name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None
    }


def agree(network, call, x):
    """Hold a pass to the plain one in float64: as near as the plain one in float32, or to 1e-5."""
    exact = copy.deepcopy(network).double()
    wanted, wanted_gradients = passed(exact, exact, x.double())
    plain, plain_gradients = passed(network, network, x)
    mean, gradients = passed(network, call, x)
    assert mean.dtype == plain.dtype
    assert gradients.keys() == plain_gradients.keys() == wanted_gradients.keys()
    everything = torch.cat([gradient.flatten() for gradient in wanted_gradients.values()]).norm()
    for name, found, reference, own in [
        ("forecast", mean, wanted, plain),
        *((name, gradients[name], wanted_gradients[name], plain_gradients[name]) for name in gradients),
    ]:
        # A gradient that cancels to nothing cannot be had better than float32 holds all of them.
        size = reference.norm() + (0.0 if name == "forecast" else 1e-2 * everything)
        error, own_error = ((each.double() - reference).norm() / size for each in (found, own))
        assert error < max(1e-5, 4 * own_error), (name, float(error), float(own_error))


@pytest.fixture
def some(model):
    """A network whose scheme is away from its start, where many wrong formulas agree with the right one."""

    def make(**fields):
        network = model(**{"depth": 2, **fields})
        generator = torch.Generator().manual_seed(5)
        for parameter in network.residual.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        return network

    return make


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("residual", list(RESIDUALS))
def test_the_fast_pass_equals_the_plain_one(some, x, residual, checkpointed):
    network = some(residual=residual)
    fast = network.compiled()
    network.activation_checkpointing = checkpointed
    agree(network, fast, x)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("num_streams", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("residual", STREAMS)
def test_fused_streams_equal_plain_ones_for_any_number(some, x, residual, num_streams, norm):
    network = some(residual=residual, residual_options={"num_streams": num_streams}, norm=norm)
    fast = network.compiled()
    assert fast.fused is not None
    agree(network, fast, x)


@pytest.mark.parametrize("residual", STREAMS)
@pytest.mark.parametrize(("windows", "tokens"), [(1, 1), (3, 7), (4, 8)])
def test_fused_streams_equal_plain_ones_for_any_number_of_tokens(some, x, residual, windows, tokens):
    network = some(residual=residual)
    agree(network, network.compiled(), x[:windows, :tokens])


@pytest.mark.parametrize("width", [16, 48, 144])
def test_fused_streams_equal_plain_ones_at_any_width(some, x, width):
    network = some(residual="dynamic_hyper_connections", residual_options={"tanh": False}, width=width)
    agree(network, network.compiled(), x)


def test_the_number_of_threads_is_no_matter(some, x):
    network = some(residual="dynamic_hyper_connections", width=32)
    x = x.repeat(8, 1, 1)
    fast, found = network.compiled(), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(passed(network, fast, x))
    finally:
        torch.set_num_threads(before)
    (one, alone), (two, shared), (again, repeated) = found
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)
    for name, gradient in alone.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-4, atol=1e-5)
    # With the same number not a bit differs.
    assert torch.equal(two, again)
    assert all(torch.equal(shared[name], gradient) for name, gradient in repeated.items())


@pytest.mark.parametrize("residual", ["pre_norm", *STREAMS])
def test_in_half_precision_the_streams_stay_in_float32(some, x, residual):
    network = some(residual=residual)
    fast = network.compiled()

    def in_half(call):
        def run(x):
            with torch.autocast("cpu", torch.bfloat16):
                return call(x)

        return run

    plain, plain_gradients = passed(network, in_half(network), x)
    mean, gradients = passed(network, in_half(fast), x)
    torch.testing.assert_close(mean, plain, rtol=0.02, atol=0.02)
    ours, theirs = (torch.cat([g.flatten() for g in each.values()]) for each in (gradients, plain_gradients))
    assert (ours - theirs).norm() / theirs.norm() < 0.02


@pytest.mark.parametrize("residual", STREAMS)
def test_what_the_kernels_are_not_made_for_runs_plainly(model, x, residual):
    assert fused(model(residual=residual, width=24).residual) is None
    assert fused(model(residual=residual).double().residual) is None
    assert fused(model(residual=residual, residual_options={"num_streams": 9}).residual) is None
    network = model(residual=residual, random=True, width=24)
    agree(network, network.compiled(), x)


def test_extreme_logits_leave_sinkhorn_finite(some, x):
    network = some(residual="manifold_hyper_connections")
    with torch.no_grad():
        for b in network.residual.b:
            b.copy_(100 * torch.randn(b.shape, generator=torch.Generator().manual_seed(1)))
    agree(network, network.compiled(), x)


@pytest.mark.parametrize("positions", ["relative", "learned"])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("size", [3, 8, 16, 24])
def test_attention_by_kernel_is_attention(tokens, size, positions):
    generator = torch.Generator().manual_seed(tokens)
    branch = CausalSelfAttention(
        2 * size,
        2,
        context=40,
        dropout=0.0,
        relative_positions=positions == "relative",
        value_residual="learned",
    )
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    u, first = (torch.randn(3, tokens, 2 * size, generator=generator) for _ in range(2))
    in_heads = first.view(3, tokens, 2, size).transpose(1, 2).reshape(6, tokens, size)
    exact = copy.deepcopy(branch).double()
    found = []
    for each, call, inputs in (
        (exact, exact.attend, (u.double(), in_heads.double())),
        (branch, branch.attend, (u.clone(), in_heads.clone())),
        (branch, partial(attend, branch, hand_on=True), (u.clone(), first.clone())),
    ):
        wanted = [*each.parameters(), *(tensor.requires_grad_() for tensor in inputs)]
        y, value = call(*inputs)
        # The values are used too, as later attentions do.
        loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() + value.square().sum()
        *rest, to_first = torch.autograd.grad(loss, wanted)
        if to_first.dim() == 3 and to_first.shape[0] == 6:
            to_first = to_first.view(3, 2, tokens, size).transpose(1, 2).reshape(3, tokens, -1)
        found.append([y.detach(), *rest, to_first])
    for reference, plain, fast in zip(*found, strict=True):
        # Of one token the gradient of scores is 0.
        size_of = reference.norm() + 1e-2 * found[0][0].norm()
        error, own_error = ((each.double() - reference).norm() / size_of for each in (fast, plain))
        assert error < max(1e-5, 4 * own_error)


def test_a_later_token_weighs_nothing_however_large(some, x):
    """Not even what is left of an exponential: an infinite later token would spoil the earlier ones."""
    network = some(residual="pre_norm")
    branch = network.branches[0]
    u = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(0))
    y, _ = attend(branch, u, None, hand_on=False)
    changed = u.clone()
    changed[:, 7:] *= 1e15
    other, _ = attend(branch, changed, None, hand_on=False)
    assert torch.equal(other[:, :7], y[:, :7])


def test_what_is_no_number_stays_so(some):
    branch = some(residual="pre_norm").branches[0]
    with torch.no_grad():
        branch.query_key_value.weight[:16].fill_(torch.nan)
    y, _ = attend(branch, torch.ones(1, 12, 16), None, hand_on=False)
    assert y.isnan().all()


@pytest.mark.parametrize("value_residual", ["fixed", "learned"])
def test_values_of_the_first_attention_are_handed_on(some, x, value_residual):
    network = some(residual="dynamic_hyper_connections", value_residual=value_residual)
    agree(network, network.compiled(), x)
    agree(network, network.compiled("aot_eager"), x)


def test_dropout_draws_what_the_plain_pass_draws(some, x):
    network = some(residual="static_hyper_connections", dropout=0.3)
    found = []
    for call in (network, network.compiled(), network.compiled("aot_eager")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            found.append(call(x).mean.detach())
    for mean in found[1:]:
        torch.testing.assert_close(mean, found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("residual", ["pre_norm", "dynamic_hyper_connections", "attention_residuals"])
def test_regions_equal_the_plain_pass(some, x, residual, checkpointed):
    network = some(residual=residual)
    network.activation_checkpointing = checkpointed
    agree(network, network.compiled("aot_eager"), x)


def test_one_compilation_serves_every_depth_and_every_network(some, x):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    for depth in (1, 2, 5):
        network = some(residual="pre_norm", depth=depth)
        CompiledPass(network, backend=backend)(x)
        assert len(graphs) == 1
    network.eval()
    CompiledPass(network, backend=backend)(x)
    assert len(graphs) == 2
    # A scheme whose sources grow compiles its branches only.
    for depth in (1, 3):
        CompiledPass(some(residual="attention_residuals", depth=depth), backend=backend)(x)
        assert len(graphs) == 4


@pytest.mark.slow
def test_code_is_dropped_when_there_is_too_much_of_it(some, x, monkeypatch):
    monkeypatch.setattr(regions, "MOST_REGIONS", 2)
    monkeypatch.setattr(regions, "_regions", {})
    for tokens in (3, 4, 5, 6):
        network = some(residual="pre_norm", depth=1)
        agree(network, CompiledPass(network, backend="aot_eager"), x[:, :tokens])
        assert len(regions._regions) <= 2


# The scheme of the second is plain: there it is the branches that refuse.
@pytest.mark.parametrize("residual", ["pre_norm", "denseformer"])
def test_a_second_derivative_is_refused_and_never_a_part_of_it(some, x, residual):
    network = some(residual=residual)
    loss = network.compiled()(x).mean.square().sum()
    with pytest.raises(ValueError, match="first derivatives only"):
        torch.autograd.grad(loss, list(network.branches.parameters()), create_graph=True)


def test_a_longer_window_is_refused_as_by_the_network(some, x):
    fast = some(residual="pre_norm").compiled()
    with pytest.raises(ValueError, match="at most context = 12 tokens"):
        fast(torch.cat([x, x], dim=1))


# torch warns about itself while it imports its own compiler; nothing here calls what it names.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("residual", ["pre_norm", "dynamic_hyper_connections"])
def test_the_compiler_itself_agrees(some, x, residual):
    network = some(residual=residual)
    agree(network, network.compiled("inductor"), x)
