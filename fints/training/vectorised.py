"""Several fits as one: the loop of `fints.training.loop` over networks with stacked parameters.

Shapes: K members, B batch, T tokens, F features, P trainable numbers of one network.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fints.config import TrainingConfig, part_to_dict
from fints.training.common import shortage, too_large
from fints.training.device import is_out_of_memory, release, resolve_device
from fints.training.progress import Progress
from fints.training.result import FitResult
from fints.training.steering import NEEDS_PLAIN_PASS
from fints.training.surroundings import surroundings
from fints.training.vectorised_loop import STACKED, Group, Member, State

__all__ = ["MAY_DIFFER", "Member", "cannot_be_vectorised", "fit_together"]

# Fields of the training configuration in which members may differ; in all others they are one fit's.
MAY_DIFFER = frozenset(
    {
        "learning_rate",
        "final_learning_rate_share",
        "warmup_steps",
        "weight_decay",
        "betas",
        "clip_norm",
        "patience",
        "keep",
    }
)


def cannot_be_vectorised(config: TrainingConfig) -> str | None:
    """Return why fits of this configuration are not made together, None if they can be."""
    if config.activation_checkpointing:
        return "a network that needs training.activation_checkpointing is too large to be stacked"
    if config.precision != "float32":
        return f"stacked networks are trained in float32; got training.precision = {config.precision!r}"
    return None


def fit_together(members: Sequence[Member]) -> list[FitResult]:
    r"""Train several networks of one structure at once; each ends as `fints.training.fit` would leave it.

    .. math:: \theta_k \leftarrow \mathrm{AdamW}_k\bigl(\theta_k,\; g_k \min(1, c_k/\lVert g_k\rVert)\bigr),
        \qquad k = 1, \ldots, K

    Every member has its own weights, windows, batch order, dropout, learning rate, clipping, evaluations,
    kept weights and end. The numbers are those of a fit by itself to rounding: products are summed in another
    order. A member that has diverged or stopped leaves the stack, and the others go on as they would have.

    Dropout is a function of a member's seed, the step and the sublayer, as in a fit by itself.

    Deterministic: the same members in the same order give the same bits on the CPU. There is no checkpoint.

    Time is shared out: what a step or an evaluation of all took is divided evenly among the members that were
    in it, and what was done for one member alone is that one's. So the `seconds` of all add up to the wall
    clock. `peak_memory` is of the process, that is of all members.

    Parameters
    ----------
    members
        The fits. Their configurations may differ in the fields of `MAY_DIFFER` alone; all have validation
        windows, or none has; all have a steering, of the same interventions, or none has. Windows may differ
        in number, not in shape.

    Returns
    -------
    list of FitResult
        In the order of the members. If memory runs out, it does for all that were still being trained.

    Raises
    ------
    ValueError
        Where `fints.training.fit` raises one, or the members cannot be trained together.
    """
    if not members:
        return []
    _refuse(members)
    config = members[0].config
    device = resolve_device(config.device)
    total = _total(members)
    reason = None if total is None else too_large([member.model for member in members], total, device)
    if reason is not None:
        for member in members:
            member.model.eval()
        return [Progress().result("out_of_memory", reason, device) for _ in members]
    states = [State(member) for member in members]
    with surroundings(members[0].model, config, device):
        group = Group(states, device)
        try:
            group.run()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for state in group.alive:
                state.end("out_of_memory", shortage(error, state.progress.step, device))
        finally:
            group.leave()
        # Outside the handler: an exception in flight keeps the frames, and their tensors, alive.
        for state in states:
            state.put_back(device)
        if any(state.outcome == "out_of_memory" for state in states):
            del group
            release(device)
    return [state.progress.result(state.outcome, state.reason, device) for state in states]


def _refuse(members: Sequence[Member]) -> None:
    """Refuse members that cannot be trained together.

    Raises
    ------
    ValueError
        With the reason.
    """
    first = members[0]
    for member in members:
        if reason := cannot_be_vectorised(member.config):
            raise ValueError(f"these fits cannot be vectorised: {reason}. Fit one by one.")
        if getattr(member.model, STACKED, None) is None:
            raise ValueError(
                f"networks that are trained together must be a fints.model.Transformer; got "
                f"{type(member.model).__name__}. Fit one by one."
            )
        if _shapes(member.model) != _shapes(first.model):
            raise ValueError(
                "networks that are trained together must have one structure; these have parameters of other "
                "names or shapes. Fit one by one."
            )
        own, other = part_to_dict(member.config), part_to_dict(first.config)
        names = (own.keys() | other.keys()) - MAY_DIFFER
        if unequal := sorted(name for name in names if own.get(name) != other.get(name)):
            raise ValueError(
                f"fits that are made together must agree in training.{unequal[0]}; got "
                f"{other.get(unequal[0])!r} and {own.get(unequal[0])!r}. They may differ in "
                f"{', '.join(sorted(MAY_DIFFER))}."
            )
        if (member.steering is None) != (first.steering is None):
            raise ValueError(
                "fits that are made together must all have a steering (training.interventions), or none; "
                "some have. Give all the same interventions."
            )
        if member.steering is not None and member.config.compile:
            raise ValueError(NEEDS_PLAIN_PASS)
        if member.steering is not None and not member.steering.only_watches:
            raise ValueError(
                "an intervention that changes the pass of a network acts in that network alone. Fit one by "
                "one, or leave it out of training.interventions."
            )
        if (member.validation is None) != (first.validation is None):
            raise ValueError(
                "fits that are made together must all have validation windows, or none; some have."
            )
        if member.config.patience and member.validation is None:
            raise ValueError(
                f"early stopping (training.patience = {member.config.patience}) needs a validation set; got "
                "None. Give one or set training.patience = 0."
            )
        if member.validation is not None and len(member.validation) == 0:
            raise ValueError("validation needs at least one window; got none. Widen its dates, or pass None.")


def _shapes(model: nn.Module) -> list[tuple[str, torch.Size, bool]]:
    return [(name, each.shape, each.requires_grad) for name, each in model.named_parameters()]


def _total(members: Sequence[Member]) -> int | None:
    known = [member.estimated_bytes for member in members if member.estimated_bytes is not None]
    return sum(known) if known else None
