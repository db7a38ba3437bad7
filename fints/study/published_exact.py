"""Claims that need no panel: identities and counts, checked by computing them when a report is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fints.config import Experiment, ModelConfig, override
from fints.model import build, convert, estimate_memory, parameter_count
from fints.model.convert import largest_difference
from fints.residual import RESIDUALS

__all__ = [
    "Exact",
    "conversions",
    "cost_of_streams",
    "entropy_bound",
    "exact_checks",
    "gated_copies_difference",
]

STREAMS = 4
TWO_AND_A_HALF = 2.5
HYPER = "dynamic_hyper_connections"


@dataclass(frozen=True, kw_only=True)
class Exact:
    """A claim, its source, what was computed, what came out, and what that says of the claim."""

    claim: str
    source: str
    check: str
    found: str
    verdict: str


def entropy_bound(num_streams: int) -> float:
    """Return the largest entropy of a distribution over n streams in nats, ln n."""
    return math.log(num_streams)


def gated_copies_difference(model: ModelConfig, *, num_features: int, context: int, seed: int = 0) -> float:
    """Return how far gated copies with random gates are from Pre-Norm with the same branches and norms.

    The largest difference of forecasts in double precision, relative to their size; every norm's epsilon is
    small enough not to count.
    """
    plain = replace(model, residual="pre_norm", residual_options={}, norm_eps=1e-30)
    gated = replace(plain, residual="gated_copies", residual_options={"num_streams": STREAMS})
    one, other = (
        build(config, num_features=num_features, context=context, seed=seed).double().eval()
        for config in (plain, gated)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.residual.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    shared = {name: other.state_dict()[name] for name in one.state_dict()}
    one.load_state_dict(shared)
    return largest_difference(one, other, _inputs(num_features, context, seed).double())


def conversions(model: ModelConfig, *, num_features: int, context: int, seed: int = 0) -> dict[str, float]:
    """Return the schemes that a Pre-Norm network can be moved to, and how far its forecasts differ then.

    `fints.model.convert` refuses the others. The difference is at the norms' own epsilon.
    """
    source = replace(model, residual="pre_norm", residual_options={})
    network = build(source, num_features=num_features, context=context, seed=seed)
    x = _inputs(num_features, context, seed)
    found = {}
    for name in RESIDUALS:
        if name == "pre_norm":
            continue
        try:
            moved, _ = convert(network, source, to=name)
        except ValueError:
            continue
        found[name] = largest_difference(network.eval(), moved, x)
    return found


def cost_of_streams(experiment: Experiment) -> dict[str, float]:
    """Return what n streams cost over what Pre-Norm does: parameters, memory, memory recomputed."""
    found = {}
    costs = {}
    for name, options in (("pre_norm", {}), (HYPER, {"num_streams": STREAMS})):
        one = override(experiment, {"model.residual": name, "model.residual_options": options})
        num_features, context = len(one.data.features), one.data.context
        memory = [
            estimate_memory(
                one.model,
                num_features=num_features,
                context=context,
                batch_size=one.training.batch_size,
                activation_checkpointing=again,
            )
            for again in (False, True)
        ]
        count = parameter_count(one.model, num_features=num_features, context=context)
        costs[name] = (count, *memory)
    for place, kind in enumerate(("parameters", "memory", "memory_recomputed")):
        # Recomputing is held against Pre-Norm without it: that is what it is said to repair.
        found[kind] = costs[HYPER][place] / costs["pre_norm"][min(place, 1)]
    return found


def _entropy() -> Exact:
    bound = entropy_bound(STREAMS)
    return Exact(
        claim="the entropy of Hyper-Connections' mixing weights should be at least 2.5",
        source="S",
        check=f"largest entropy of weights over n = {STREAMS} streams, ln n",
        found=f"{bound:.2f} nats, {bound / math.log(2):.0f} bits",
        verdict="impossible as stated" if bound < TWO_AND_A_HALF else "possible",
    )


def _gated(experiment: Experiment) -> Exact:
    model = override(experiment, {"model.depth": 2}).model
    sizes = {"num_features": len(experiment.data.features), "context": experiment.data.context}
    difference = gated_copies_difference(model, **sizes)
    return Exact(
        claim="gated copies of the stream with weights in [0, 1] are Hyper-Connections",
        source="S",
        check="relative difference to Pre-Norm with the same branches, whatever the gates",
        found=f"{difference:.0e}",
        verdict="false: they are Pre-Norm" if difference < 1e-9 else "not shown",
    )


def _moved(experiment: Experiment) -> Exact:
    model = override(experiment, {"model.depth": 2}).model
    sizes = {"num_features": len(experiment.data.features), "context": experiment.data.context}
    found = conversions(model, **sizes)
    others = len(RESIDUALS) - 1 - len(found)
    hyper = HYPER in found
    return Exact(
        claim="a checkpoint cannot simply be moved to another scheme",
        source="S",
        check="schemes that a Pre-Norm network moves to with the same forecasts (`fints.model.convert`)",
        found=f"{len(found)} move{', Hyper-Connections among them' if hyper else ''}; {others} refused",
        verdict="true of some, false of others" if found and others else "true" if others else "false",
    )


def _costs(experiment: Experiment) -> list[Exact]:
    found = cost_of_streams(experiment)
    parameters = 100 * (found["parameters"] - 1)
    return [
        Exact(
            claim="Hyper-Connections add 5 % parameters (S); 0.03 % at the width of a language model (P)",
            source="S, P (arXiv 2409.19606)",
            check=f"parameters of n = {STREAMS} streams beyond Pre-Norm's, here",
            found=f"{parameters:.1f} %",
            verdict="about right here" if 2.5 <= parameters <= 10 else "not here",
        ),
        Exact(
            claim="Hyper-Connections need n times the memory (S); 16 to 28 % more (P); recomputing repairs "
            "it",
            source="S, P (arXiv 2409.19606)",
            check="memory of a training step over Pre-Norm's, by `fints.model.estimate_memory`; recomputed",
            found=f"{found['memory']:.2f}; {found['memory_recomputed']:.2f}",
            verdict=("n-fold is too much" if found["memory"] < 0.8 * STREAMS else "n-fold")
            + (", 16 to 28 % too little" if found["memory"] > 1.5 else "")
            + (", repaired" if found["memory_recomputed"] <= 1 else ", not repaired"),
        ),
    ]


def exact_checks(experiment: Experiment) -> list[Exact]:
    """Return every exact check at the sizes of an experiment."""
    return [_entropy(), _gated(experiment), _moved(experiment), *_costs(experiment)]


def _inputs(num_features: int, context: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, context, num_features, generator=generator)
