"""A trained network under another residual scheme, where that scheme can compute the same function.

From Pre-Norm the networks are equal in exact arithmetic: what is not shared (Hyper-Connections' streams,
attention over depth) starts where it equals Pre-Norm, so that training may go on from there. A scheme
that reads a multiple of Pre-Norm's stream leaves it to the norm to remove the factor; the norm's epsilon
then differs in effect, and the forecasts by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import ModelConfig
from fints.model.transformer import Transformer, build
from fints.residual import RESIDUALS, ByDepth, build_residual

__all__ = ["convert", "largest_difference"]

# Relative, in double precision and with every epsilon 0: rounding alone is left.
EXACT = 1e-9


def convert(
    model: Transformer,
    config: ModelConfig,
    *,
    to: str,
    options: Mapping[str, Any] | None = None,
    num_horizons: int = 1,
) -> tuple[Transformer, ModelConfig]:
    """Return a network of the scheme `to` that computes what `model` computes, and its configuration.

    =====================================  ==========================================================
    from -> to                             how
    =====================================  ==========================================================
    pre_norm -> what equals it when fresh  norms copied, all else as fresh
    pre_norm -> layer_norm_scaling         gains and biases of block l times sqrt(l); and back
    pre_norm -> layer_scale, skip_init,    the factor 1
    re_zero (branch_norm "pre")
    layer_scale, skip_init, re_zero        the factor folded into the branch's output map
    (branch_norm "pre") -> pre_norm
    learnable_skip -> static HC (n = 1)    A_m = 1, A_r = a, B = b
    static HC -> dynamic HC (same n)       constants copied, W = 0; Frac-Connections likewise
    post_norm -> admin                     omega = 1
    =====================================  ==========================================================

    Two of them are chained through Pre-Norm. The result is checked: it is returned only if it agrees with
    `model` on random inputs to 1e-9 in double precision with every norm's epsilon set to 0.

    Weights alone are converted. A state of the optimiser (moments, step, schedule) belongs to other
    parameters and is not carried: training goes on with a fresh one.

    Parameters
    ----------
    model, config
        The network and what it was built from. It is left as it is.
    to
        A name of `fints.residual.RESIDUALS`.
    options
        Options of that scheme.
    num_horizons
        Of the network.

    Returns
    -------
    Transformer, ModelConfig
        On the CPU, in evaluation mode. The initialiser is "default" where `to` allows no other: nothing
        is drawn anew.

    Raises
    ------
    ValueError
        If no exact conversion exists, with the reason, `to` or an option is unknown, or `model` is altered.
    """
    if model.alteration is not None:
        raise ValueError(
            "an altered network (training.interventions) has no conversion that computes the same."
        )
    # Refuses an unknown name or option with the known ones.
    build_residual(to, options, width=config.width, num_sublayers=2 * config.depth)
    route = _route(config.residual, to)
    precision = next(model.parameters()).dtype
    # In double precision throughout, so that what is found to differ is no rounding of a folded gain.
    original = _build(config, model, num_horizons).double()
    original.load_state_dict(model.state_dict())
    source, given = original, config
    for name in route:
        target_config = replace(
            given,
            residual=name,
            residual_options=dict(options or {}) if name == to else {},
            initialiser="default" if RESIDUALS[name].own_branch_scale else given.initialiser,
        )
        target = _build(target_config, model, num_horizons).double()
        rest = {key: value for key, value in source.state_dict().items() if not key.startswith("residual.")}
        target.load_state_dict(rest, strict=False)
        with torch.no_grad():
            CONVERSIONS[given.residual, name](source, target)
        source, given = target, target_config
    difference = _difference_without_epsilon(original, source)
    if not difference <= EXACT:
        chosen = ", ".join(f"{name}={value}" for name, value in given.residual_options.items()) or "defaults"
        raise ValueError(
            f"{config.residual} cannot become {to} with these options ({chosen}): the forecasts would differ "
            f"by {difference:.1e} of their size. {_HINTS.get(to, 'Its defaults are such that it can.')}"
        )
    return source.to(precision).eval(), given


def largest_difference(first: Transformer, second: Transformer, x: Tensor) -> float:
    """Return the largest difference of two networks' outputs on x (B, T, F), over the largest output."""
    with torch.no_grad():
        outputs = [torch.cat([part for part in net(x) if part is not None], -1) for net in (first, second)]
    return float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())


def _route(source: str, to: str) -> list[str]:
    """Return the names to go through, the last one `to`."""
    if (source, to) in CONVERSIONS:
        return [to]
    if (source, "pre_norm") in CONVERSIONS and ("pre_norm", to) in CONVERSIONS:
        return ["pre_norm", to]
    if source == to:
        raise ValueError(f"the network is one of {to} already.")
    reason = _WHY_NOT_TO.get(to) if (source, "pre_norm") in CONVERSIONS or source == "pre_norm" else None
    raise ValueError(
        f"there is no exact conversion from {source} to {to}: {reason or _why_not_from(source)}. "
        "Train a network of that scheme instead."
    )


def _build(config: ModelConfig, model: Transformer, num_horizons: int) -> Transformer:
    return build(
        config,
        num_features=model.embedding.linear.in_features // 2,
        context=model.context,
        num_horizons=num_horizons,
        seed=0,
    )


def _difference_without_epsilon(first: Transformer, second: Transformer) -> float:
    """Return `largest_difference` on random inputs with every norm's epsilon 0 meanwhile."""
    shape = (8, first.context, first.embedding.linear.in_features // 2)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norms = [
        module
        for network in (first.eval(), second.eval())
        for module in network.modules()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm)
    ]
    kept = [norm.eps for norm in norms]
    for norm in norms:
        norm.eps = 0.0
    difference = largest_difference(first, second, x)
    for norm, eps in zip(norms, kept, strict=True):
        norm.eps = eps
    return difference


def _copy_shared(source: Transformer, target: Transformer) -> None:
    """Copy what both schemes name alike: the norms."""
    known = target.residual.state_dict()
    shared = {name: value for name, value in source.residual.state_dict().items() if name in known}
    target.residual.load_state_dict(shared, strict=False)


def _copy_into_parts(source: Transformer, target: Transformer) -> None:
    """Copy each norm into the part of the mixture that holds its sublayer."""
    mixture = target.residual
    assert isinstance(mixture, ByDepth)
    given = source.residual.state_dict()
    for start, part in zip(mixture.starts, mixture.parts, strict=True):
        for name, parameter in part.named_parameters():
            kind, _, rest = name.partition(".")
            if kind == "norms":
                layer, _, which = rest.partition(".")
                parameter.copy_(given[f"norms.{start + int(layer)}.{which}"])
            elif kind == "final_norm":
                parameter.copy_(given[name])


def _fold_depth(source: Transformer, target: Transformer) -> None:
    """Give the norms of block l what the scaling by 1 / sqrt(l) takes away."""
    _scale_norms(source, target, 0.5)


def _unfold_depth(source: Transformer, target: Transformer) -> None:
    """Give the norms of block l the scaling by 1 / sqrt(l)."""
    _scale_norms(source, target, -0.5)


def _scale_norms(source: Transformer, target: Transformer, power: float) -> None:
    _copy_shared(source, target)
    norms = target.residual.get_submodule("norms")
    assert isinstance(norms, nn.ModuleList)
    for layer, norm in enumerate(norms):
        for parameter in norm.parameters():
            parameter.mul_((layer // 2 + 1) ** power)


def _unit_factor(source: Transformer, target: Transformer) -> None:
    """Let the factor on each branch be 1."""
    _copy_shared(source, target)
    for name, parameter in target.residual.named_parameters():
        if name.partition(".")[0] in ("scale", "alpha", "omega"):
            parameter.fill_(1.0)


def _fold_factor(source: Transformer, target: Transformer) -> None:
    """Multiply each branch's output map by the factor on the branch."""
    _copy_shared(source, target)
    factors = dict(source.residual.named_parameters())
    for layer, branch in enumerate(target.branches):
        factor = factors.get(f"scale.{layer}", factors.get(f"alpha.{layer}"))
        assert factor is not None
        output = branch.output
        assert isinstance(output, nn.Linear)
        output.weight.mul_(factor.reshape(-1, 1))
        output.bias.mul_(factor)


def _one_stream(source: Transformer, target: Transformer) -> None:
    """Write (1, a, b) as the constants of Hyper-Connections with one stream."""
    _copy_shared(source, target)
    own, given = target.residual.state_dict(), source.residual.state_dict()
    for layer in range(len(source.branches)):
        own[f"A_r.{layer}"].fill_(given[f"a.{layer}"])
        own[f"B.{layer}"].fill_(given[f"b.{layer}"])


Conversion = Callable[[Transformer, Transformer], None]
CONVERSIONS: dict[tuple[str, str], Conversion] = {
    **{
        ("pre_norm", name): _copy_shared
        for name, scheme in RESIDUALS.items()
        if scheme.equals_pre_norm_at_start and name != "pre_norm"
    },
    ("pre_norm", "by_depth"): _copy_into_parts,
    ("pre_norm", "layer_norm_scaling"): _fold_depth,
    ("layer_norm_scaling", "pre_norm"): _unfold_depth,
    ("pre_norm", "layer_scale"): _unit_factor,
    ("pre_norm", "skip_init"): _unit_factor,
    ("pre_norm", "re_zero"): _unit_factor,
    ("layer_scale", "pre_norm"): _fold_factor,
    ("skip_init", "pre_norm"): _fold_factor,
    ("re_zero", "pre_norm"): _fold_factor,
    ("learnable_skip", "static_hyper_connections"): _one_stream,
    ("static_hyper_connections", "dynamic_hyper_connections"): _copy_shared,
    ("static_frac_connections", "frac_connections"): _copy_shared,
    ("post_norm", "admin"): _unit_factor,
}

_NORMED = "it norms the trunk at each sublayer, and no setting of its parameters leaves the plain sum"
_OUTPUTS = "it norms what each branch returns, and a plain sum keeps the length that each token gave it"
# Why a plain sum of outputs cannot be written as these.
_WHY_NOT_TO = {
    **{name: _NORMED for name, scheme in RESIDUALS.items() if scheme.normalises_trunk},
    "deep_norm": _NORMED,
    "resi_dual": _NORMED,
    "mix_ln": _NORMED,
    "sandwich_norm": _OUTPUTS,
    "peri_ln": _OUTPUTS,
    "no_skip": "it drops the skip, through which the embedding and every output pass",
    "window_rescaled_pre_norm": "it divides each window by its own scale",
    "state_attention": "it averages the states between sublayers, in which early outputs count more often",
}

_HINTS = {
    "re_zero": "Give branch_norm=pre: without norms it is another function.",
    "by_depth": "Give segments that each equal Pre-Norm when fresh.",
}


def _why_not_from(source: str) -> str:
    """Return why the trained scheme is no special case of another."""
    if source in ("sandwich_norm", "peri_ln"):
        return "the norm of a branch's output depends on each token, and no other scheme has one there"
    if source == "no_skip":
        return "without a skip there is no stream that another scheme could carry"
    if source == "window_rescaled_pre_norm":
        return "no other scheme divides a window by its own scale"
    if source == "learnable_skip":
        return "its skips have strengths of their own; Hyper-Connections with num_streams=1 alone have them"
    if RESIDUALS[source].normalises_trunk or source in ("resi_dual", "mix_ln"):
        return "its trunk is normed, which no plain sum and no mix of streams can do"
    return (
        "its trained weights let every sublayer read another mix of what came before, which the other scheme "
        "cannot form"
    )
