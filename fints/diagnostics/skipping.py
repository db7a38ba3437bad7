"""What the loss is when sublayers are skipped: the functional test that a similarity is not.

Shapes: B batch, T tokens, F features, L sublayers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fints.diagnostics.profile import evaluation_mode
from fints.model import Transformer
from fints.residual import Branch
from fints.training import one_thread
from fints.training.losses import Loss

__all__ = ["contiguous_sublayers", "loss_when_skipped", "skip_rows"]


def loss_when_skipped(
    model: Transformer, x: Tensor, y: Tensor, layers: Iterable[int], *, loss: Loss
) -> float:
    r"""Return the loss with :math:`y_k := 0` at `layers`, in evaluation mode.

    What the scheme does to its streams at a skipped sublayer, it still does: only the branch's output is
    gone. Under Post-Norm the norms that follow see another scale, so a skip there is more than a branch
    left out; and blocks that make up for each other look needed one by one or needless together. So read
    single skips beside contiguous ones.

    Parameters
    ----------
    model
        Left as found.
    x, y
        Inputs (B, T, F) and targets (B, T), NaN where there is none; of dates not trained on.
    layers
        Sublayers that are skipped.
    loss
        From `fints.training.make_loss`.

    Notes
    -----
    The drop of ShortGPT (arXiv 2403.03853) and Gromov et al. (arXiv 2403.17887), who remove whole blocks.
    Training on for a few steps with them gone (healing) is `fints.interventions.SkippedSublayers`.
    """
    skipped = set(layers)

    def wrapped(branch: Branch) -> Branch:
        # The branch still runs: a value residual asks the first attention for its values.
        return lambda u: torch.zeros_like(branch(u))

    with evaluation_mode(model), one_thread(), torch.no_grad():
        model.check_tokens(x)
        state: Any = model.residual.open(model.embedding(x))
        first_value: Tensor | None = None
        number = len(model.branches)
        for layer in range(number):
            watch = wrapped if layer in skipped else None
            state, first_value = model.sublayer(state, layer, first_value, watch)
        forecast = model.head(model.residual.close(state, number))
        return float(loss(forecast, y).mean())


def contiguous_sublayers(num_sublayers: int, *, blocks: int) -> list[range]:
    """Return the sublayers of each run of `blocks` neighbouring blocks; a block is two sublayers."""
    return [range(start, start + 2 * blocks) for start in range(0, num_sublayers - 2 * blocks + 1, 2)]


def skip_rows(
    model: Transformer, x: Tensor, y: Tensor, *, loss: Loss, blocks: Iterable[int] = (1, 2)
) -> list[dict[str, Any]]:
    """Return one row a skip: each sublayer alone, and each run of `blocks` neighbouring blocks.

    ``first``, ``number`` (of sublayers), ``loss``, and ``rise`` over the loss of the whole network: 0 where
    what was skipped is redundant. A loss that is not finite is None.
    """
    number = len(model.branches)
    runs = [range(layer, layer + 1) for layer in range(number)]
    for size in blocks:
        runs += contiguous_sublayers(number, blocks=size)
    whole = loss_when_skipped(model, x, y, (), loss=loss)
    rows = []
    for run in runs:
        found = loss_when_skipped(model, x, y, run, loss=loss)
        rows.append(
            {
                "first": run.start,
                "number": len(run),
                "loss": found if math.isfinite(found) else None,
                "rise": found - whole if math.isfinite(found - whole) else None,
            }
        )
    return rows
