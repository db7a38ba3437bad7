"""The value residual: every attention but the first mixes in the first one's values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fints.model import Trace
from fints.training.optimizer import parameter_groups

KINDS = ["fixed", "learned"]


def attention_of(branch, u: Tensor, first: Tensor | None, mix) -> tuple[Tensor, Tensor]:
    """Attention on u (B, T, D) from its definition, with the own values (B, T, D)."""
    query, key, value = (
        u @ w.T + b
        for w, b in zip(
            branch.query_key_value.weight.chunk(3), branch.query_key_value.bias.chunk(3), strict=True
        )
    )
    used = value if first is None else mix[0] * first + mix[1] * value
    tokens, size = u.shape[1], u.shape[2] // branch.num_heads
    heads = []
    for head in range(branch.num_heads):
        columns = slice(head * size, (head + 1) * size)
        scores = query[..., columns] @ key[..., columns].mT / math.sqrt(size)
        bias = torch.full((tokens, tokens), -torch.inf, dtype=u.dtype)
        for i in range(tokens):
            for j in range(i + 1):
                bias[i, j] = branch.position_bias[head, branch.position_bias.shape[1] - 1 - (i - j)]
        heads.append((scores + bias).softmax(-1) @ used[..., columns])
    return torch.cat(heads, -1) @ branch.output.weight.T + branch.output.bias, value


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_its_equation(model, x, kind):
    network = model(value_residual=kind, random=True).double()
    h = network.embedding(x.double())
    first = None
    for layer, branch in enumerate(network.branches):
        u = network.residual.norms[layer](h)
        if layer % 2:
            h = h + branch(u)
            continue
        mix = (0.5, 0.5) if kind == "fixed" else branch.value_mix
        y, value = attention_of(branch, u, first, mix)
        first = value if layer == 0 else first
        h = h + y
    expected = network.head(network.residual.final_norm(h)).mean
    assert_close(network(x.double()).mean, expected, rtol=0, atol=1e-11)


def test_with_weights_zero_and_one_it_is_the_base_bit_for_bit(model, x):
    network, base = model(value_residual="learned", random=True), model(random=True)
    own = network.state_dict()
    base.load_state_dict({name: own[name] for name in base.state_dict()})
    assert not torch.equal(network(x).mean, base(x).mean)
    for attention in network.branches[2::2]:
        with torch.no_grad():
            attention.value_mix.copy_(torch.tensor([0.0, 1.0]))
    assert torch.equal(network(x).mean, base(x).mean)


@pytest.mark.parametrize("kind", KINDS)
def test_every_attention_sends_a_gradient_to_the_first_ones_values(model, x, kind):
    network = model(value_residual=kind, random=True, depth=4)
    calls = network.branch_calls()
    u = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
    calls[0](u)
    for block in range(1, 4):
        # The input is a constant, so the first values are the only way back.
        y = calls[2 * block](u)
        weight = network.branches[0].query_key_value.weight
        (gradient,) = torch.autograd.grad(y.square().sum(), weight, retain_graph=True)
        query, key, value = gradient.chunk(3)
        assert value.abs().max() > 0
        assert not query.any()
        assert not key.any()


@pytest.mark.parametrize("residual", ["pre_norm", "dynamic_hyper_connections"])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_and_tracing_change_no_bit(model, x, kind, residual):
    network = model(value_residual=kind, residual=residual, random=True, dropout=0.3)
    routes = []
    for checkpointed, trace in ((False, None), (True, None), (True, Trace())):
        network.activation_checkpointing = checkpointed
        network.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            mean = network(x, trace=trace).mean
            mean.square().sum().backward()
        routes.append([mean.detach(), *(parameter.grad.clone() for parameter in network.parameters())])
        assert all(parameter.grad.abs().max() > 0 for parameter in network.branches[0].parameters())
        if kind == "learned":
            assert all(branch.value_mix.grad.abs().min() > 0 for branch in network.branches[2::2])
    for route in routes[1:]:
        assert all(torch.equal(*pair) for pair in zip(route, routes[0], strict=True))
    assert len(trace.outputs) == 6


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
def test_the_pass_is_one_graph_with_equal_gradients(model, x, checkpointed):
    network = model(value_residual="learned", random=True, depth=2)
    network.activation_checkpointing = checkpointed
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    routes = []
    for call in (network, compiled):
        network.zero_grad()
        mean = call(x).mean
        mean.square().sum().backward()
        routes.append([mean.detach(), *(parameter.grad.clone() for parameter in network.parameters())])
    for ours, theirs in zip(*routes, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_future_never_reaches_the_past(model, x):
    network = model(value_residual="learned", random=True)
    shocked = x.clone()
    shocked[:, 7:] = 1000.0
    assert torch.equal(network(shocked).mean[:, :7], network(x).mean[:, :7])


def test_it_starts_at_one_half_from_the_same_branches_and_does_not_decay(model):
    base = model().state_dict()
    for kind, extra in (("fixed", set()), ("learned", {f"branches.{k}.value_mix" for k in (2, 4)})):
        network = model(value_residual=kind)
        state = network.state_dict()
        assert set(state) - set(base) == extra
        assert all(torch.equal(state[name], value) for name, value in base.items())
        assert all(torch.equal(branch.value_mix, torch.full((2,), 0.5)) for branch in network.branches[2::2])
        assert network.branches[0].value_mix is None
        decayed = parameter_groups(network, 0.1)[0]["names"]
        assert not extra & set(decayed)


def test_an_attention_that_was_not_given_the_first_values_says_so(model):
    network = model(value_residual="fixed")
    with pytest.raises(ValueError, match=r"needs the values of the first attention.*branch_calls\(\)"):
        network.branches[2](torch.zeros(1, 3, 16))
    with pytest.raises(ValueError, match="value_residual = 'half' is unknown"):
        model(value_residual="half")
