"""Mixtures by depth are their parts, one after the other, with what the boundary says between them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fints.config import Experiment, ModelConfig, fingerprint, override
from fints.diagnostics.depth_mixing import compose
from fints.model import build
from fints.residual import RESIDUALS, build_residual
from fints.residual.base import norm_parameters

PRE, POST, DEEP = ["pre_norm", 1], ["post_norm", 1], ["deep_norm", 1]
DYNAMIC = ["dynamic_hyper_connections", 1, {"num_streams": 3}]
FULL = ["attention_residuals", 2]
BLOCKS = ["block_attention_residuals", 1, {"block_size": 1}]
DENSE = ["denseformer", 1]
LAYOUTS = [
    [PRE, DYNAMIC, PRE, POST],
    [DYNAMIC, FULL, DYNAMIC],
    [FULL, POST, BLOCKS],
    [DENSE, ["resi_dual", 1], DENSE, PRE],
    [["layer_norm_scaling", 2], ["static_hyper_connections", 2]],
    [POST, DEEP, ["peri_ln", 1], ["mix_ln", 1]],
    [PRE, ["state_attention", 2, {"query": "input"}], POST],
]
SAME_START = [
    ["pre_norm", 1],
    ["static_hyper_connections", 1],
    ["frac_connections", 1],
    ["manifold_hyper_connections", 1],
    ["gated_streams", 1],
    ["denseformer", 1],
    ["attention_residuals", 2],
    ["block_attention_residuals", 2, {"block_size": 3}],
    ["dynamic_hyper_connections", 1],
]


def mixture(network, segments, **given):
    num_sublayers = 2 * sum(segment[1] for segment in segments)
    return network("by_depth", {"segments": segments}, num_sublayers=num_sublayers, **given)


def names(layout):
    return "-".join(segment[0] for segment in layout)


@pytest.mark.parametrize("segments", LAYOUTS, ids=names)
@pytest.mark.parametrize("first_layer", [0, 3])
def test_a_mixture_is_its_parts_one_after_the_other(network, x, segments, first_layer):
    net = mixture(network, segments, random=True, first_layer=first_layer)
    state_dict, h, at = net.residual.state_dict(), x, 0
    normed = None
    for i, (name, blocks, *options) in enumerate(segments):
        part = build_residual(
            name,
            options[0] if options else {},
            width=16,
            num_sublayers=2 * blocks,
            norm_eps=1e-12,
            first_layer=first_layer + at,
        ).double()
        own = {key[8:]: value for key, value in state_dict.items() if key.startswith(f"parts.{i}.")}
        missing = part.load_state_dict(own, strict=False)
        last = i == len(segments) - 1
        assert missing.unexpected_keys == []
        assert all(key.startswith("final_norm") and not last for key in missing.missing_keys)
        post = name in ("post_norm", "deep_norm", "resi_dual")
        if normed is False and post:
            norm = nn.LayerNorm(16, eps=1e-12, dtype=torch.float64)
            own = {key[17:]: v for key, v in state_dict.items() if key.startswith(f"boundary_norms.{i - 1}.")}
            norm.load_state_dict(own)
            h = norm(h)
        state = part.open(h)
        for layer in range(2 * blocks):
            state = part.step(state, layer, net.branches[at + layer])
        h = part.close(state, 2 * blocks) if last else part.merge(state, 2 * blocks)
        at, normed = at + 2 * blocks, post
    assert_close(net(x), h, rtol=0, atol=1e-12)


@pytest.mark.parametrize("segments", [SAME_START, SAME_START[::-1]], ids=["up", "down"])
@pytest.mark.parametrize("norm_eps", [1e-12, 1e-5])
def test_segments_that_start_as_pre_norm_start_together_as_pre_norm(network, x, segments, norm_eps):
    net = mixture(network, segments, norm_eps=norm_eps)
    reference = network("pre_norm", num_sublayers=len(net.branches), norm_eps=norm_eps)
    for layer, (state, h) in enumerate(zip(net.states(x), reference.states(x), strict=True)):
        # Reads of a manifold's streams have another scale, which its norm removes up to eps.
        tolerance = 1e-10 if norm_eps < 1e-9 else 1e-3
        assert_close(net.residual.merge(state, layer), h, rtol=tolerance, atol=tolerance)


def test_branch_gradients_of_such_a_mixture_are_those_of_pre_norm(network, x):
    net = mixture(network, SAME_START)
    reference = network("pre_norm", num_sublayers=len(net.branches))
    target = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    gradients = [
        torch.autograd.grad((each(x) - target).square().sum(), list(each.branches.parameters()))
        for each in (net, reference)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_without_segments_it_is_pre_norm_below_and_hyper_connections_above(network, x):
    ours = network("by_depth", random=True)
    theirs = network(
        "by_depth", {"segments": [["pre_norm", 2], ["dynamic_hyper_connections", 2]]}, random=True
    )
    assert torch.equal(ours(x), theirs(x))


def test_a_norm_stands_only_where_a_growing_trunk_enters_a_normed_one(network):
    residual = mixture(network, [PRE, POST, PRE, DYNAMIC, DEEP, POST]).residual
    normed = [not isinstance(norm, nn.Identity) for norm in residual.boundary_norms]
    assert normed == [True, False, False, True, False]


def test_only_the_last_segment_has_a_final_norm(network):
    residual = mixture(network, [PRE, DYNAMIC, FULL, PRE]).residual
    has = [isinstance(part.final_norm, nn.LayerNorm) for part in residual.parts]
    assert has == [False, False, False, True]
    assert "final_norm" not in dict(mixture(network, [PRE, POST]).residual.parts[1].named_children())


def test_home_streams_and_scalings_count_from_the_bottom_and_deep_norm_within_its_segment(network):
    residual = mixture(
        network, [["pre_norm", 1], ["static_hyper_connections", 2, {"num_streams": 3}]]
    ).residual
    homes = [int(a_m.argmax()) for a_m in residual.parts[1].A_m]
    assert homes == [2, 0, 1, 2]
    scaled = mixture(network, [["pre_norm", 3], ["layer_norm_scaling", 1]], norm_eps=0.0)
    h, given = torch.randn(2, 16, dtype=torch.float64), []
    scaled.residual.step(h, 6, lambda u: given.append(u) or u)
    assert_close(given[0], nn.functional.layer_norm(h, (16,), eps=0) / 2, rtol=0, atol=1e-12)
    deep = mixture(network, [["pre_norm", 2], ["deep_norm", 4]])
    h, ones = torch.randn(2, 16, dtype=torch.float64), torch.ones(2, 16, dtype=torch.float64)
    expected = nn.functional.layer_norm(8**0.25 * h + ones * h[:, :1], (16,), eps=1e-12)
    assert_close(deep.residual.step(h, 4, lambda u: ones * u[:, :1]), expected, rtol=0, atol=1e-9)


def test_the_state_that_enters_a_sublayer_belongs_to_its_segment(network, x):
    net = mixture(network, [PRE, DYNAMIC, FULL], random=True)
    states = net.states(x)
    kinds = ["one", "one", "streams", "streams", "sources", "sources", "sources", "sources", "sources"]
    for layer, (state, kind) in enumerate(zip(states, kinds, strict=True)):
        if kind == "sources":
            assert isinstance(state, tuple)
            assert len(state) == 2 * (layer - 4 + 1)
        else:
            assert state.dim() == (4 if kind == "streams" else 3)
    parts = [type(net.residual.part(layer)).__name__ for layer in range(8)]
    assert parts == ["PreNorm"] * 2 + ["DynamicHyperConnections"] * 2 + ["AttentionResiduals"] * 4


def test_what_leaves_attention_over_depth_is_the_count_times_its_last_mean(network, x):
    net = mixture(network, [FULL, PRE], random=True)
    part, outputs = net.residual.parts[0], [x]
    state = net.residual.open(x)
    for layer, branch in enumerate(net.branches[:4]):
        state = net.residual.step(state, layer, lambda u, b=branch: outputs.append(b(u)) or outputs[-1])
    keys = [v / (v.square().mean(-1, keepdim=True) + 1e-12).sqrt() * part.queries.gain[-1] for v in outputs]
    alpha = torch.stack([key @ part.queries.w[-1] for key in keys]).softmax(0)
    expected = 5 * sum(a.unsqueeze(-1) * v for a, v in zip(alpha, outputs, strict=True))
    assert_close(state, expected, rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "segments",
    [
        [PRE, DYNAMIC],
        [["attention_residuals", 1, {"window": 1}], POST],
        [BLOCKS, DENSE, ["state_attention", 1]],
    ],
    ids=names,
)
def test_a_mixture_is_one_graph_with_the_same_gradients(network, x, segments):
    net = mixture(network, segments, random=True)
    graph = torch.compile(net, backend="eager", fullgraph=True)
    gradients = [torch.autograd.grad(each(x).pow(3).sum(), list(net.parameters())) for each in (net, graph)]
    torch._dynamo.reset()
    for plain, ours in zip(*gradients, strict=True):
        assert_close(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("segments", [*LAYOUTS, SAME_START, [DYNAMIC, ["re_zero", 2], PRE]], ids=names)
def test_parameters_are_those_of_the_formula(segments, norm):
    num_sublayers = 2 * sum(segment[1] for segment in segments)
    residual = build_residual(
        "by_depth", {"segments": segments}, width=16, num_sublayers=num_sublayers, norm=norm
    )
    extra = RESIDUALS["by_depth"].extra_parameters(16, num_sublayers, norm=norm, segments=segments)
    reference = (num_sublayers + 1) * norm_parameters(norm, 16)
    assert sum(p.numel() for p in residual.parameters()) == reference + extra


@pytest.mark.parametrize("segments", LAYOUTS, ids=names)
def test_every_parameter_learns(network, x, segments):
    net = mixture(network, segments, random=True)
    net(x).pow(3).sum().backward()
    assert [key for key, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_decay_is_that_of_the_parts(network):
    residual = mixture(network, [DYNAMIC, ["attention_residuals", 1, {"query": "input"}], POST]).residual
    every = {key for key, _ in residual.named_parameters()}
    decayed = every - residual.no_decay()
    assert decayed == {"parts.0.W.0", "parts.0.W.1", "parts.1.queries.W.0", "parts.1.queries.W.1"}
    assert residual.no_decay() < every


def test_fresh_branches_are_rescaled_as_their_segment_says():
    plain, mixed = (
        build(
            ModelConfig(residual=name, residual_options=options, depth=4),
            num_features=3,
            context=8,
            seed=0,
        )
        for name, options in [
            ("pre_norm", {}),
            ("by_depth", {"segments": [["pre_norm", 2], ["deep_norm", 2]]}),
        ]
    )
    ratios = [
        (b.output.weight.std() / a.output.weight.std()).item()
        for a, b in zip(plain.branches, mixed.branches, strict=True)
    ]
    assert ratios[:4] == [1.0] * 4
    alone = build(ModelConfig(residual="deep_norm", depth=2), num_features=3, context=8, seed=0)
    base = build(ModelConfig(residual="pre_norm", depth=2), num_features=3, context=8, seed=0)
    expected = [
        (b.output.weight.std() / a.output.weight.std()).item()
        for a, b in zip(base.branches, alone.branches, strict=True)
    ]
    assert ratios[4:] == pytest.approx(expected, rel=0.05)


def test_a_part_is_calibrated_on_what_enters_it(network, x):
    net = mixture(network, [["pre_norm", 2], ["admin", 1], ["admin", 1]])
    with torch.no_grad():
        net.residual.calibrate(x, net.branches)
        h = net.residual.boundary_norms[0](network("pre_norm", num_sublayers=4).states(x)[-1])
        for i, first in ((1, 4), (2, 6)):
            alone = build_residual("admin", {}, width=16, num_sublayers=2, norm_eps=1e-12).double()
            alone.calibrate(h, net.branches[first : first + 2])
            for ours, theirs in zip(net.residual.parts[i].omega, alone.omega, strict=True):
                assert_close(ours, theirs, rtol=0, atol=1e-12)
            assert not (alone.omega[1] == 1).any()
            for layer, branch in enumerate(net.branches[first : first + 2]):
                h = alone.step(h, layer, branch)


@pytest.mark.parametrize(
    "segments",
    [[PRE, DYNAMIC, PRE], [DENSE, DYNAMIC], [DYNAMIC, DENSE, FULL], [PRE, BLOCKS], [["denseformer", 2], PRE]],
    ids=names,
)
def test_mixing_weights_rebuild_every_read_across_boundaries(network, x, segments):
    net = mixture(network, segments, random=True)
    outputs, states = [x], [net.residual.open(x)]
    for layer, branch in enumerate(net.branches):
        states.append(
            net.residual.step(states[-1], layer, lambda u, b=branch: outputs.append(b(u)) or outputs[-1])
        )
    matrix = compose(net.residual, states)
    last = len(net.branches)
    for k in range(last + 1):
        read = net.residual.merge(states[k], k) if k == last else net.residual.read(states[k], k)
        weights = matrix[..., k, : k + 1].expand(*x.shape[:2], k + 1)
        rebuilt = sum(weights[..., j : j + 1] * outputs[j] for j in range(k + 1))
        assert_close(rebuilt, read, rtol=0, atol=1e-9)


def test_no_mixing_weights_are_claimed_where_a_boundary_is_not_linear(network, x):
    trained = mixture(network, [FULL, PRE], random=True)
    states = trained.states(x)
    assert trained.residual.mixing(states[2], 2) is not None
    assert trained.residual.mixing(states[3], 3) is None
    fresh = mixture(network, [FULL, PRE])
    assert fresh.residual.mixing(fresh.states(x)[3], 3) is not None
    for above in ("post_norm", "peri_ln", "window_rescaled_pre_norm"):
        rescaled = mixture(network, [PRE, [above, 1]])
        states = rescaled.states(x)
        assert rescaled.residual.mixing(states[0], 0) is not None
        assert rescaled.residual.mixing(states[1], 1) is None


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "at least one segment; got \\[\\]. Write \\[name, blocks\\]"),
        ([["pre_norm", 2], ["pre_norm", 1]], "add up to the depth, 4; got 2 \\+ 1 = 3. Change the segments"),
        ([["pre_norm"]], "segment 0 is \\['pre_norm'\\]. Write"),
        (["pre_norm", 4], "segment 0 is 'pre_norm'"),
        ([["pre_norm", 2], [2, "pre_norm"]], "segment 1 is \\[2, 'pre_norm'\\]"),
        ([["pre_norm", 0], ["pre_norm", 4]], "segment 0 \\(pre_norm\\): its blocks .* at least 1; got 0"),
        ([["pre_norm", 2.0], ["pre_norm", 2]], "segment 0 \\(pre_norm\\): its blocks .* got 2.0"),
        ([["pre_norm", True], ["pre_norm", 3]], "its blocks .* got True"),
        ([["pre_norm", 2], ["prenorm", 2]], "segment 1 \\(prenorm\\): unknown .* Did you mean 'pre_norm'"),
        ([["pre_norm", 2], ["by_depth", 2]], "segment 1 is a mixture itself. List its segments"),
        ([["pre_norm", 4, []]], "segment 0 \\(pre_norm\\): its options must be a table; got \\[\\]"),
        (
            [["pre_norm", 2], ["dynamic_hyper_connections", 2, {"streams": 2}]],
            "segment 1 \\(dynamic_hyper_connections\\): unknown option 'streams'.*num_streams",
        ),
        (
            [["static_hyper_connections", 4, {"num_streams": 0}]],
            "segment 0 \\(static_hyper_connections\\): num_streams .* got 0",
        ),
    ],
)
def test_a_wrong_segment_is_one_message_that_names_it(network, segments, message):
    with pytest.raises(ValueError, match=message):
        network("by_depth", {"segments": segments})


def test_segments_must_be_a_list(network):
    with pytest.raises(ValueError, match="option segments of by_depth must be a list; got 'pre_norm'"):
        network("by_depth", {"segments": "pre_norm"})


def test_a_mixture_is_stated_in_an_experiment_and_comes_back_from_json():
    text = '[["pre_norm", 2], ["dynamic_hyper_connections", 2, {"num_streams": 2, "tanh": false}]]'
    changes = {"model.residual": "by_depth", "model.residual_options.segments": json.loads(text)}
    experiment = override(Experiment(), changes)
    again = Experiment.from_dict(json.loads(json.dumps(experiment.to_dict())))
    assert again == experiment
    assert fingerprint(again) == fingerprint(experiment) != fingerprint(Experiment())
    network = build(again.model, num_features=3, context=8, seed=0)
    assert [part.num_streams for part in network.residual.parts[1:]] == [2]
