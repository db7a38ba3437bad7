"""Attention over depth against its equations as loops, on random parameters; and what it is at the start."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.testing import assert_close

from fints.residual import RESIDUALS
from fints.residual.depth_attention import literal_weighted_sum, weighted_sum

OPTIONS = [
    {"query": query, "score_norm": score_norm, "normaliser": normaliser}
    for query, score_norm, normaliser in itertools.product(
        ["static", "input"], ["rms", "none"], ["softmax", "sigmoid"]
    )
]
BLOCK_SIZES = [1, 2, 3, 4, 8]


def norm_of_vector(norm, h: Tensor) -> Tensor:
    if isinstance(norm, torch.nn.LayerNorm):
        centred = h - h.sum() / len(h)
        return centred / ((centred * centred).sum() / len(h) + norm.eps).sqrt() * norm.weight + norm.bias
    return h / ((h * h).sum() / len(h) + norm.eps).sqrt() * norm.weight


def one_read(residual, layer: int, sources: list[Tensor], options: dict) -> tuple[Tensor, list[Tensor]]:
    """u and alpha of one token, from the paper; `sources` are those that the sublayer attends to."""
    if len(sources) == 1:
        return sources[0], [torch.ones((), dtype=torch.float64)]
    queries = residual.queries
    if options.get("query", "static") == "static":
        w = queries.w[layer - 1]
    else:
        w = queries.W[layer - 1] @ sources[-1]
    scores = []
    for v in sources:
        key = v
        if options.get("score_norm", "rms") == "rms":
            key = v / ((v * v).sum() / len(v) + queries.eps).sqrt() * queries.gain[layer - 1]
        scores.append((w * key).sum())
    if options.get("normaliser", "softmax") == "softmax":
        total = sum(score.exp() for score in scores)
        alpha = [score.exp() / total for score in scores]
        factor = len(sources)
    else:
        alpha = [1 / (1 + (-score).exp()) for score in scores]
        factor = 2
    return factor * sum(a * v for a, v in zip(alpha, sources, strict=True)), alpha


def within(sources: list[Tensor], window: int) -> list[Tensor]:
    return sources if window == 0 else sources[:1] + sources[1:][-window:]


def one_token(net, x: Tensor, options: dict, *, block_size: int = 1) -> Tensor:
    """The whole network on one token (D,): finished blocks b and the running sum p."""
    residual, window = net.residual, options.get("window", 0)
    blocks, p = [x], None
    for layer, branch in enumerate(net.branches):
        sources = blocks if p is None else [*blocks, p]
        u, _ = one_read(residual, layer, within(sources, window), options)
        y = branch(norm_of_vector(residual.norms[layer], u))
        p = y if p is None else p + y
        if (layer + 1) % block_size == 0:
            blocks, p = [*blocks, p], None
    sources = blocks if p is None else [*blocks, p]
    u, _ = one_read(residual, len(net.branches), within(sources, window), options)
    return norm_of_vector(residual.final_norm, u)


def one_token_of_states(net, x: Tensor, options: dict) -> Tensor:
    """The same for attention over states: h are running sums."""
    residual, states = net.residual, [x]
    for layer, branch in enumerate(net.branches):
        u, _ = one_read(residual, layer, states, options)
        if layer:
            u = u / len(states)
        states = [*states, states[-1] + branch(norm_of_vector(residual.norms[layer], u))]
    u, _ = one_read(residual, len(net.branches), states, options)
    return norm_of_vector(residual.final_norm, u / len(states))


def assert_is(net, x: Tensor, literal) -> None:
    expected = torch.stack([torch.stack([literal(token) for token in row]) for row in x])
    assert_close(net(x), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
def test_attention_residuals_are_their_equation(network, x, options):
    net = network("attention_residuals", options, num_sublayers=5, random=True, norm_eps=1e-5)
    assert_is(net, x, lambda token: one_token(net, token, options))


def test_with_rms_norms_they_are_their_equation_too(network, x):
    net = network("attention_residuals", num_sublayers=4, random=True, norm="rms_norm", norm_eps=1e-5)
    assert_is(net, x, lambda token: one_token(net, token, {}))


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("block_size", [1, 2])
def test_a_window_shows_the_embedding_and_the_latest_sources(network, x, window, block_size):
    options = {"window": window, "block_size": block_size}
    net = network("block_attention_residuals", options, num_sublayers=7, random=True, norm_eps=1e-5)
    assert_is(net, x, lambda token: one_token(net, token, options, block_size=block_size))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("block_size", [2, 3])
def test_block_attention_residuals_are_their_equation(network, x, options, block_size):
    options = {**options, "block_size": block_size}
    net = network("block_attention_residuals", options, num_sublayers=5, random=True, norm_eps=1e-5)
    assert_is(net, x, lambda token: one_token(net, token, options, block_size=block_size))


@pytest.mark.parametrize("query", ["static", "input"])
def test_state_attention_is_its_equation(network, x, query):
    net = network("state_attention", {"query": query}, num_sublayers=5, random=True, norm_eps=1e-5)
    assert_is(net, x, lambda token: one_token_of_states(net, token, {"query": query}))


def test_blocks_of_one_sublayer_are_the_full_variant(network, x):
    full, blocks = (
        network(name, options, random=True)
        for name, options in [
            ("attention_residuals", {}),
            ("block_attention_residuals", {"block_size": 1}),
        ]
    )
    assert_close(blocks(x), full(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_the_number_of_sources_is_that_of_the_formula(network, x, block_size):
    net = network("block_attention_residuals", {"block_size": block_size})
    for layer, state in enumerate(net.states(x)):
        count = layer // block_size + 1 + (layer % block_size != 0)
        assert net.residual.weights(state, layer)["alpha"].shape == (*x.shape[:2], count)


def test_there_are_about_eight_blocks_unless_said_otherwise():
    for num_sublayers, block_size in [(2, 1), (8, 1), (16, 2), (32, 4), (96, 12)]:
        residual = RESIDUALS["block_attention_residuals"](4, num_sublayers)
        assert residual.block_size == block_size


STARTS = [
    ("attention_residuals", {}),
    ("attention_residuals", {"query": "input"}),
    ("attention_residuals", {"score_norm": "none"}),
    ("attention_residuals", {"normaliser": "sigmoid"}),
    *(("block_attention_residuals", {"block_size": size}) for size in BLOCK_SIZES),
]


@pytest.mark.parametrize("norm_eps", [1e-12, 1e-5])
@pytest.mark.parametrize(("name", "options"), STARTS)
def test_the_start_equals_pre_norm_at_every_depth_and_eps(network, x, name, options, norm_eps):
    net, reference = network(name, options, norm_eps=norm_eps), network("pre_norm", norm_eps=norm_eps)
    for layer, (state, h) in enumerate(zip(net.states(x), reference.states(x), strict=True)):
        assert_close(net.residual.merge(state, layer), h, rtol=1e-11, atol=1e-11)
    assert_close(net(x), reference(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "options"), STARTS)
def test_branch_gradients_at_the_start_equal_those_of_pre_norm(network, x, name, options):
    target = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    gradients = []
    for net in (network(name, options), network("pre_norm")):
        loss = (net(x) - target).square().sum()
        gradients.append(torch.autograd.grad(loss, list(net.branches.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["attention_residuals", "block_attention_residuals", "state_attention"])
@pytest.mark.parametrize("query", ["static", "input"])
def test_queries_start_at_zero_and_sublayer_0_has_none(network, name, query):
    queries = network(name, {"query": query}).residual.queries
    learned = queries.w if query == "static" else queries.W
    assert (len(learned), len(queries.gain)) == (8, 8)
    assert not any(parameter.any() for parameter in learned)
    assert all((gain == 1).all() for gain in queries.gain)


@pytest.mark.parametrize("name", ["attention_residuals", "block_attention_residuals", "state_attention"])
def test_only_maps_of_the_input_decay(network, name):
    residual = network(name, {"query": "input"}, num_sublayers=2).residual
    names = {key for key, _ in residual.named_parameters()}
    assert names - residual.no_decay() == {"queries.W.0", "queries.W.1"}


def test_attention_over_states_does_not_start_as_pre_norm_but_as_a_plain_mean(network, x):
    net = network("state_attention")
    for layer, state in enumerate(net.states(x)):
        states = state[: len(state) // 2]
        assert_close(net.residual.read(state, layer), sum(states) / (layer + 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["attention_residuals", "block_attention_residuals", "state_attention"])
def test_the_read_out_attends_with_a_query_of_its_own(network, x, name):
    net = network(name, random=True)
    before = net(x)
    states = net.states(x)
    with torch.no_grad():
        net.residual.queries.w[-1] += 1
    assert (net(x) - before).abs().max() > 1e-2
    for state, other in zip(states, net.states(x), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(sources_of(state), sources_of(other), strict=True))


def sources_of(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state[: len(state) // 2]


def test_a_sources_length_matters_to_its_value_and_not_to_its_weight(network, x):
    net = network("attention_residuals", random=True)
    state = net.states(x)[3]
    sources = list(sources_of(state))
    sources[1] = 7 * sources[1]
    longer = (*sources, *(net.residual.queries.key(v, i, 9) for i, v in enumerate(sources)))
    alpha, other = (net.residual.weights(s, 3)["alpha"] for s in (state, longer))
    assert_close(other, alpha, rtol=0, atol=1e-9)
    assert_close(alpha.sum(-1), torch.ones(3, 5, dtype=x.dtype), rtol=0, atol=1e-12)
    assert (net.residual.read(longer, 3) - net.residual.read(state, 3)).abs().max() > 1e-2


CASES = [
    ("attention_residuals", {}, "layer_norm"),
    ("attention_residuals", {"query": "input", "normaliser": "sigmoid"}, "rms_norm"),
    ("attention_residuals", {"score_norm": "none", "window": 1}, "layer_norm"),
    ("block_attention_residuals", {"block_size": 2}, "layer_norm"),
    ("state_attention", {}, "rms_norm"),
    ("denseformer", {}, "layer_norm"),
]


@pytest.mark.parametrize(("name", "options", "norm"), CASES)
def test_gradients_agree_with_finite_differences(network, name, options, norm):
    net = network(name, options, width=6, num_sublayers=3, random=True, norm=norm, norm_eps=1e-5)
    names = [key for key, _ in net.residual.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in net.residual.parameters()]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 1, 6, dtype=torch.float64, generator=generator, requires_grad=True)

    def output(x, *values):
        parameters = {f"residual.{key}": value for key, value in zip(names, values, strict=True)}
        return functional_call(net, parameters, (x,))

    assert torch.autograd.gradcheck(output, (x, *values))


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 1, 1)], ids=["a weight a token", "one weight"])
def test_the_weighted_sum_and_its_gradients_are_those_of_plain_operations(shape):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    sources = [
        torch.randn(2, 3, 5, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(4)
    ]
    results = []
    for function in (weighted_sum, literal_weighted_sum):
        h = function(weights, sources)
        results.append([h, *torch.autograd.grad(h.square().sum(), [weights, *sources])])
    for ours, plain in zip(*results, strict=True):
        assert_close(ours, plain, rtol=0, atol=1e-12)
    assert torch.autograd.gradgradcheck(lambda a, *v: weighted_sum(a, v), (weights, *sources))


def test_a_sublayer_keeps_of_each_source_a_reference_and_its_scores(network):
    """So memory is that of Pre-Norm and one tensor a sublayer, which the branch's output is anyway."""
    net = network("attention_residuals", width=64)
    x = torch.randn(4, 8, 64, dtype=torch.float64)
    state = net.states(x)[6]
    known = {tensor.untyped_storage().data_ptr() for tensor in state}
    known |= {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net.residual.read(state, 6)
    # 7 sources have 7 scores a token: far less than one source more.
    assert 0 < sum(kept.values()) < x.numel() * x.element_size()


@pytest.mark.parametrize("name", ["attention_residuals", "block_attention_residuals", "denseformer"])
def test_a_step_carries_its_sources_on_as_they_are(network, x, name):
    net = network(name, random=True)
    before, after = net.states(x)[4:6]
    carried = [any(new is old for new in after) for old in sources_of(before)]
    assert all(carried[:-1])


@pytest.mark.parametrize("name", ["attention_residuals", "block_attention_residuals"])
def test_with_queries_of_zero_it_is_pre_norm_whatever_the_gains(network, x, name):
    net, reference = network(name, random=True), network("pre_norm")
    with torch.no_grad():
        for w in net.residual.queries.w:
            w.zero_()
    reference.residual.norms.load_state_dict(net.residual.norms.state_dict())
    reference.residual.final_norm.load_state_dict(net.residual.final_norm.state_dict())
    assert_close(net(x), reference(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attention_residuals", {"query": "dynamic"}, "query = 'dynamic' is unknown. Choose one of static"),
        ("attention_residuals", {"score_norm": "layer"}, "score_norm = 'layer' is unknown"),
        ("attention_residuals", {"normaliser": "sparsemax"}, "Choose one of softmax, sigmoid"),
        ("attention_residuals", {"window": -1}, "window must be a whole number of at least 0; got -1"),
        ("block_attention_residuals", {"block_size": 0}, "block_size must be .* at least 1; got 0"),
        ("block_attention_residuals", {"block_size": 2.0}, "whole number; got 2.0"),
        ("denseformer", {"dilation": 0}, "dilation must be a whole number of at least 1; got 0"),
        ("denseformer", {"period": -2}, "period must be a whole number of at least 1; got -2"),
        ("mix_ln", {"post_share": 1.5}, "post_share must be from 0 to 1; got 1.5"),
    ],
)
def test_a_wrong_option_is_one_clear_message(network, name, options, message):
    with pytest.raises(ValueError, match=message):
        network(name, options)
