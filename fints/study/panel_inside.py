r"""What a final fit looks like inside, as rows by sublayer, and how its loss fell: for claims about networks.

A study asks for these by `PanelStudy.asked`.

==================  =====================================================================================
asked               rows, ``step, layer, measure, value``
==================  =====================================================================================
inside: true        of the fitted network on windows spread over the test dates, step None:
                    ``adjacent_cosine`` (``_centred``, ``_null``), ``relative_update``, ``gradient_norm`` of
                    `fints.diagnostics.profile`; ``trunk_size``, the root mean square of the stream;
                    ``gradient_variance`` over batches of windows; ``skip_rise`` of each sublayer and
                    ``block_rise`` of each block, the rise of the distance to the planted signal when it is
                    skipped; ``source_weight``, the size of the weight of its output in the read-out;
                    ``recent_share``, the size of the output before it, times its weight in what this one
                    reads, over the size of that; of several streams
                    ``diversity`` and ``entropy_read``, ``entropy_write``, ``entropy_carry``; and
                    ``adjacent_cosine_initial``, ``gradient_norm_initial`` of the same network before training
curve: true         ``validation_distance`` at each moment that is profiled: the mean squared distance to the
                    planted signal on windows spread over the validation dates
==================  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import Experiment
from fints.diagnostics import (
    batch_gradient_variance,
    depth_mixing,
    loss_when_skipped,
    profile,
    record,
    stream_rows,
)
from fints.diagnostics.profile import evaluation_mode
from fints.diagnostics.tokens import sizes
from fints.model import Transformer
from fints.training import Batches, one_thread, predict
from fints.training.losses import Loss

__all__ = ["Curve", "inside_rows", "windows_seen"]

# Windows that measures of one pass are means over; that a skip is judged on, in as many passes as there are
# sublayers and blocks; batches, of as many windows as one for training has, that gradients differ between.
PASS_WINDOWS, SKIP_WINDOWS, BATCHES, BATCH_WINDOWS = 64, 128, 8, 32
# Twenty points of a curve cost a tenth of a fit with as many.
CURVE_WINDOWS = 256
OF_A_PASS = ("adjacent_cosine", "adjacent_cosine_centred", "adjacent_cosine_null", "relative_update")
OF_STREAMS = ("diversity", "entropy_read", "entropy_write", "entropy_carry")

Row = dict[str, Any]


def inside_rows(
    model: Transformer, fresh: Transformer, test: Batches, said: Tensor, *, loss: Loss
) -> list[Row]:
    """Return the rows of a fitted network.

    Parameters
    ----------
    model
        Fitted; left as found.
    fresh
        The same network before training.
    test
        Its test windows, each with the outcome of its last day.
    said
        (N,) what was planted for the last day of each window.
    loss
        From `fints.training.make_loss`.
    """
    found: dict[str, list[float | None]] = {}
    x, y = _spread(test, PASS_WINDOWS)
    now = profile(model, x, y, loss=loss)
    for name in (*OF_A_PASS, "gradient_norm"):
        found[name] = [row[name] for row in now]
    before = profile(fresh, x, y, loss=loss)
    for name in ("adjacent_cosine", "gradient_norm"):
        found[f"{name}_initial"] = [row[name] for row in before]
    with evaluation_mode(model), one_thread(), torch.no_grad():
        held = record(model, x)
        found["trunk_size"] = [float(sizes(trunk).mean()) for trunk in held.trunks[:-1]]
        for row in stream_rows(model, held):
            for name in OF_STREAMS:
                found.setdefault(name, []).append(row.get(name))
    mixing = depth_mixing(model, x).mean.abs()
    found["source_weight"] = mixing[-1, 1:].tolist()
    # Sublayer k reads what sublayer k - 1 returned with the weight M[k, k]; the first one reads none.
    read, returned = ([float(sizes(z).mean()) for z in part] for part in (held.read, held.outputs))
    found["recent_share"] = [
        None,
        *(
            float(mixing[k, k]) * returned[k - 1] / read[k] if read[k] > 0 else None
            for k in range(1, len(read))
        ),
    ]
    many = _spread(test, BATCHES * BATCH_WINDOWS)
    batches = list(zip(*(part.split(BATCH_WINDOWS) for part in many), strict=True))
    if len(batches) > 1:
        found["gradient_variance"] = batch_gradient_variance(model, batches, loss=loss).variance.tolist()
    found["skip_rise"], found["block_rise"] = _rises(model, test, said, loss)
    return [
        {"step": None, "layer": layer, "measure": measure, "value": _plain(value)}
        for measure, values in found.items()
        for layer, value in enumerate(values)
    ]


def windows_seen(asked: Mapping[str, Any], experiment: Experiment) -> int:
    """Return how many windows pass forward for what is asked; back again counts as two passes more."""
    training, blocks, seen = experiment.training, experiment.model.depth, 0
    if asked.get("inside"):
        seen += 3 * (2 * PASS_WINDOWS + BATCHES * BATCH_WINDOWS) + 2 * PASS_WINDOWS
        # Every sublayer, every block and none.
        seen += (3 * blocks + 1) * SKIP_WINDOWS
    if asked.get("curve"):
        moments = {0, training.steps, *training.profile_at}
        moments |= set(
            range(training.profile_every, training.steps, training.profile_every or training.steps)
        )
        seen += len(moments) * CURVE_WINDOWS
    return seen


class Curve:
    """Follows how near the planted signal a network comes; a `fints.training.LayerProfiler`.

    Parameters
    ----------
    validation
        Windows of the validation dates.
    said
        (N,) what was planted for the last day of each.
    """

    def __init__(self, validation: Batches, said: Tensor) -> None:
        places = _places(len(validation), CURVE_WINDOWS)
        self._windows, self._said = _Chosen(validation, places), said[places]

    def __call__(self, model: nn.Module, step: int, update: Mapping[str, Tensor]) -> list[Row]:
        """Return one row after `step` steps."""
        p = predict(model, self._windows)["mean"][:, 0].double()
        distance = float((p - self._said.double()).square().mean())
        return [{"step": step, "layer": None, "measure": "validation_distance", "value": _plain(distance)}]


def _rises(
    model: Transformer, test: Batches, said: Tensor, loss: Loss
) -> tuple[list[float | None], list[float | None]]:
    """Return the rise of the distance to the signal when each sublayer, and each block, is skipped."""
    places = _places(len(test), SKIP_WINDOWS)
    x, outcomes = test.gather(places)
    y = torch.full_like(outcomes, math.nan)
    y[:, -1] = said[places].to(y.dtype)
    whole = loss_when_skipped(model, x, y, (), loss=loss)
    number = len(model.branches)
    single = [loss_when_skipped(model, x, y, (layer,), loss=loss) - whole for layer in range(number)]
    blocks = [
        loss_when_skipped(model, x, y, (layer, layer + 1), loss=loss) - whole for layer in range(0, number, 2)
    ]
    return [*single], [*blocks]


def _spread(windows: Batches, count: int) -> tuple[Tensor, Tensor]:
    return windows.gather(_places(len(windows), count))


def _places(number: int, count: int) -> Tensor:
    count = min(number, count)
    return torch.arange(count) * number // count


def _plain(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class _Chosen:
    """Some windows of a set."""

    def __init__(self, windows: Batches, places: Tensor) -> None:
        self._windows, self._places = windows, places

    def __len__(self) -> int:
        return len(self._places)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._windows.gather(self._places[positions])
