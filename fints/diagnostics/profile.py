"""The profile of a network: one row a sublayer, plain numbers, measured and never changed.

Symbols of a row k: u_k what the sublayer reads before any norm, trunk_k the state entering it as
one stream, y_k what its branch returns. B batch, T tokens, F features, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.diagnostics.gradients import branch_gradient_norms, output_gradient_norms, update_to_weight
from fints.diagnostics.similarity import (
    centred,
    effective_rank,
    mean_cosine,
    null_cosine,
    relative_size,
    token_cosine,
)
from fints.model import Trace, Transformer
from fints.training import make_loss, one_thread
from fints.training.losses import Loss

__all__ = ["MEASURES", "Profiler", "evaluation_mode", "profile"]

MEASURES = (
    "adjacent_cosine",
    "adjacent_cosine_centred",
    "trunk_cosine",
    "trunk_cosine_centred",
    "token_cosine",
    "token_cosine_centred",
    "increment_cosine",
    "increment_trunk_cosine",
    "relative_update",
    "effective_rank",
    "gradient_norm",
    "output_gradient_norm",
)
"""The columns that also have a value at random initialisation, ``NAME_initial``."""

KINDS = ("attention", "feed_forward")


def profile(
    model: Transformer,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    step: int | None = None,
    update: Mapping[str, Tensor] | None = None,
    initial: Sequence[Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    r"""Measure every sublayer of `model` on one batch, in evaluation mode.

    Cosines and the relative update are means over all B T tokens of the batch; the axis and the
    equation of each measure stand with its function in `similarity` and `gradients`.

    ========================  =============================================================
    step, layer, block, kind  the step, k from 0, k // 2, "attention" or "feed_forward"
    adjacent_cosine           cos(u_{k-1}, u_k); ``_centred``: each minus its mean token
    adjacent_cosine_null      that of independent increments of equal length: sqrt(k / (k + 1)),
                              or sqrt(1 / 2) where the scheme norms the trunk
    trunk_cosine              cos(trunk_{k-1}, trunk_k); ``_centred`` likewise
    token_cosine              mean cosine of two different tokens of u_k; ``_centred`` likewise
    increment_cosine          cos(y_{k-1}, y_k)
    increment_trunk_cosine    cos(y_k, trunk_k)
    relative_update           mean of :math:`\lVert y_k\rVert / \lVert trunk_k\rVert`
    effective_rank            of u_k, centred
    gradient_norm             of the loss by the parameters of branch k
    output_gradient_norm      of the loss by y_k
    update_to_weight          of the parameters of branch k, in the last optimiser step
    NAME_initial              the same measure at random initialisation of the same network
    ========================  =============================================================

    With streams, u_k of neighbours may come from different streams, and their cosine is then low
    without any new features: read it beside `trunk_cosine`, which is on the mean stream.

    Parameters
    ----------
    model
        The network. Its mode, its gradients and its weights are left as found.
    x, y
        Inputs (B, T, F), NaN where missing, and targets (B, T), NaN where a token has none.
    loss
        From `fints.training.make_loss`.
    step
        Copied into the rows.
    update
        What the last optimiser step added to each parameter, by name.
    initial
        The profile of the same network at random initialisation, on the same batch.

    Returns
    -------
    list of dict
        One row a sublayer, of whole numbers, texts, finite floats, and None where a measure is
        undefined: between neighbours at sublayer 0, of tensors that are all zero or not finite.
    """
    trace = Trace()
    with evaluation_mode(model), one_thread(), torch.enable_grad():
        value = loss(model(x, trace=trace), y).mean()
        parameter_norms = branch_gradient_norms(value, model.branches)
        output_norms = output_gradient_norms(value, trace.outputs)
    ratios = update_to_weight(model.branches, update, "branches.") if update else None
    reads = [_full_precision(tensor) for tensor in trace.read]
    trunks = [_full_precision(tensor) for tensor in trace.trunks]
    outputs = [_full_precision(tensor) for tensor in trace.outputs]
    rows = []
    for k, (u, trunk, increment) in enumerate(zip(reads, trunks, outputs, strict=True)):
        measured: dict[str, Tensor | float | None] = dict.fromkeys(MEASURES)
        if k > 0:
            measured |= {
                "adjacent_cosine": mean_cosine(reads[k - 1], u),
                "adjacent_cosine_centred": mean_cosine(centred(reads[k - 1]), centred(u)),
                "trunk_cosine": mean_cosine(trunks[k - 1], trunk),
                "trunk_cosine_centred": mean_cosine(centred(trunks[k - 1]), centred(trunk)),
                "increment_cosine": mean_cosine(outputs[k - 1], increment),
            }
        measured |= {
            "token_cosine": token_cosine(u),
            "token_cosine_centred": token_cosine(centred(u)),
            "increment_trunk_cosine": mean_cosine(increment, trunk),
            "relative_update": relative_size(increment, trunk),
            "effective_rank": effective_rank(u),
            "gradient_norm": parameter_norms[k],
            "output_gradient_norm": output_norms[k],
        }
        row: dict[str, Any] = {"step": step, "layer": k, "block": k // 2, "kind": KINDS[k % 2]}
        row |= {name: _plain(measured[name]) for name in MEASURES}
        normed = model.residual.part(k).normalises_trunk
        row["adjacent_cosine_null"] = null_cosine(k, normalises_trunk=normed) if k > 0 else None
        row["update_to_weight"] = None if ratios is None else _plain(ratios[k])
        for name in MEASURES:
            row[f"{name}_initial"] = None if initial is None else initial[k][name]
        rows.append(row)
    return rows


class Profiler:
    """Profiles a network during a fit, on one batch that stays the same.

    Its first call, at step 0 with the network as it is before training, measures the values at
    random initialisation, which stand beside those of every later call; without it they are None.
    It keeps nothing else, so a resumed fit, which makes that call again, measures what an
    undisturbed one does.

    Parameters
    ----------
    inputs, targets
        The probe batch, (B, T, F) and (B, T). Effective rank depends on its size: use the same in
        every arm.
    config
        Names the loss.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, config: TrainingConfig) -> None:
        self._inputs = inputs
        self._targets = targets
        self._loss = make_loss(config)
        self._initial: list[dict[str, Any]] | None = None

    def __call__(self, model: nn.Module, step: int, update: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return the rows of `profile` after `step` steps; see `fints.training.LayerProfiler`."""
        if not isinstance(model, Transformer):
            raise ValueError(f"a profile needs a fints.model.Transformer; got {type(model).__name__}.")
        if step == 0:
            self._initial = self._profile(model, step=0, update={}, initial=None)
            # Measured once: the network is what it was a moment ago.
            return [row | {f"{name}_initial": row[name] for name in MEASURES} for row in self._initial]
        return self._profile(model, step=step, update=update, initial=self._initial)

    def _profile(
        self,
        model: Transformer,
        *,
        step: int,
        update: Mapping[str, Tensor],
        initial: Sequence[Mapping[str, Any]] | None,
    ) -> list[dict[str, Any]]:
        device = next(model.parameters()).device
        return profile(
            model,
            self._inputs.to(device),
            self._targets.to(device),
            loss=self._loss,
            step=step,
            update=update,
            initial=initial,
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _full_precision(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def _plain(value: Tensor | float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
