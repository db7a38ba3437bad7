"""The whole table of measures by depth: one row a tensor, measure and site, with its null beside it.

Three families, never one number: *depth redundancy* (cosines and updates between sites), *token collapse*
(cosine, energy and rank of the tokens of one site) and *stream collapse* (`stream_spread.stream_rows`).
Shapes: B windows, T tokens, F features, D width, L sublayers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fints.diagnostics.averages import by_position, over_series
from fints.diagnostics.kernel_alignment import linear_cka, without_first_direction
from fints.diagnostics.profile import evaluation_mode
from fints.diagnostics.record import Record, record, streams
from fints.diagnostics.similarity import effective_rank, null_cosine
from fints.diagnostics.spectrum import participation_ratio, stable_rank
from fints.diagnostics.tokens import (
    angular_distance,
    centred_tokens,
    cosines,
    dirichlet,
    log_log_slope,
    random_pair_cosine,
    relative_sizes,
    sizes,
    squared_cosine,
    window_cosine,
    z_scored,
)
from fints.model import Transformer
from fints.training import one_thread
from fints.training.losses import Loss

__all__ = ["depth_table", "gradient_table"]

AS_IS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("", lambda z: z),
    ("_centred", centred_tokens),
    ("_z_scored", z_scored),
)


def depth_table(
    model: Transformer,
    x: Tensor,
    *,
    series: Tensor | None = None,
    block_distances: Sequence[int] = (1, 2, 4),
    positions: bool = False,
    initial: Sequence[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    r"""Return the measures of residual streams by depth, in evaluation mode.

    ==================================  ==========  ================================================
    measure                             tensor      value; null
    ==================================  ==========  ================================================
    adjacent_cosine, ``_centred``,      u, u_hat,   between sites k - 1 and k; for raw u and trunk
    ``_z_scored``                       trunk       `null_cosine` of the scheme's part at k
    increment_cosine                    y           of y_{k-1} and y_k; 0
    increment_trunk_cosine              y           of y_k and the trunk it is added to; 0
    relative_update                     y           size of y_k over the trunk's; 1 / sqrt(k + 1), or 1
                                                    where the scheme norms its trunk
    angular_distance_N, ``_last``       trunk       between the trunk before block k / 2 and N blocks
                                                    on, over all tokens, and over the last one; 1/2
    size                                trunk, y,   root mean square a number; for the trunk that of
                                        sum_stream  sublayer 0 times sqrt(k + 1), or itself if normed
    size_slope                          trunk       slope of log size on log(k + 1), no site; 1/2 or 0
    token_cosine, ``_centred``          u, y        of two tokens of one window; the same of two
                                                    windows (`random_pair_cosine`)
    centred_squared_cosine              u, y        `squared_cosine`; 1 / sqrt(D)
    dirichlet, dirichlet_normalised     u, y        none; 1 less the null of token_cosine
    effective_rank, ``participation_``  u, y        of centred tokens; min(N - 1, D)
    ``ratio``, stable_rank
    cka, cka_rest                       u, y        debiased, of sites k - 1 and k; ``_rest`` without
                                                    the first direction; 0
    ==================================  ==========  ================================================

    Means over tokens are taken within each series first, then over series. Ranks and CKA are of all tokens
    of the batch together: compare at equal B and T.

    Parameters
    ----------
    model
        Left as found.
    x
        (B, T, F), NaN where missing.
    series
        (B,) the number of each window's series; one if not given.
    block_distances
        N of the angular distances.
    positions
        Whether measures token by token also come in T rows, one a place of the window.
    initial
        The table of the same network at random initialisation, on the same batch.

    Returns
    -------
    list of dict
        ``tensor, measure, layer, position, value, null, initial``; position None is over the whole window.
        Numbers are finite or None.
    """
    with evaluation_mode(model), one_thread(), torch.no_grad():
        held = record(model, x)
        found = list(_measures(model, held, series, block_distances))
    rows: list[dict[str, Any]] = []
    for tensor, measure, layer, values, null in found:
        base: dict[str, Any] = {"tensor": tensor, "measure": measure, "layer": layer}
        mean = over_series(values, series) if values.dim() else values
        rows.append(base | {"position": None, "value": _plain(mean), "null": _plain(null)})
        if positions and values.dim() == 2:
            for place, value in enumerate(by_position(values, series).tolist()):
                rows.append(base | {"position": place, "value": _plain(value), "null": _plain(null)})
    keys = ("tensor", "measure", "layer", "position")
    known = {} if initial is None else {tuple(row[key] for key in keys): row["value"] for row in initial}
    return [row | {"initial": known.get(tuple(row[key] for key in keys))} for row in rows]


def gradient_table(model: Transformer, x: Tensor, y: Tensor, *, loss: Loss) -> list[dict[str, Any]]:
    r"""Return one row a sublayer of what the loss asks of it, in evaluation mode.

    ``gradient_norm`` :math:`\lVert\partial L/\partial\theta_k\rVert` of the branch, ``gradient_to_weight``
    that over :math:`\lVert\theta_k\rVert`, ``output_gradient_norm``
    :math:`\lVert\partial L/\partial y_k\rVert`, and ``trunk_gradient_norm``
    :math:`\lVert\sum_i \partial L/\partial H_{k,i}\rVert`, summed over streams: what a common move of all
    streams, which is a move of the trunk, would do; None where the state is no streams.
    """
    with evaluation_mode(model), one_thread(), torch.enable_grad():
        held = record(model, x)
        mean = loss(held.forecast, y).mean()
        number = len(held.outputs)
        whole = [k for k in range(number) if isinstance(held.states[k], Tensor)]
        groups = [list(branch.parameters()) for branch in model.branches]
        wanted = [p for group in groups for p in group] + held.outputs + [held.states[k] for k in whole]
        gradients = iter(torch.autograd.grad(mean, wanted, materialize_grads=True))
        by_branch = [[next(gradients) for _ in group] for group in groups]
        by_output = [next(gradients) for _ in held.outputs]
        by_state = {k: next(gradients) for k in whole}
    rows = []
    for k in range(number):
        norm, weight = (
            torch.stack([tensor.detach().norm() for tensor in tensors]).norm()
            for tensors in (by_branch[k], groups[k])
        )
        summed = streams(model.residual, by_state[k], k) if k in by_state else None
        rows.append(
            {
                "layer": k,
                "gradient_norm": _plain(norm),
                "gradient_to_weight": _plain(norm / weight),
                "output_gradient_norm": _plain(by_output[k].norm()),
                "trunk_gradient_norm": None if summed is None else _plain(summed.sum(-2).norm()),
            }
        )
    return rows


Measured = tuple[str, str, int | None, Tensor, float | None]


def _measures(
    model: Transformer, held: Record, series: Tensor | None, distances: Sequence[int]
) -> Iterator[Measured]:
    yield from _between_sites(model, held)
    yield from _between_blocks(held, distances)
    yield from _growth(model, held, series)
    for tensor, sites in (("u", held.read), ("y", held.outputs)):
        for k, z in enumerate(sites):
            yield from _within_site(tensor, k, z)
            if k > 0 and z.numel() // z.shape[-1] >= 4:
                yield tensor, "cka", k, linear_cka(sites[k - 1], z), 0.0
                rest = linear_cka(without_first_direction(sites[k - 1]), without_first_direction(z))
                yield tensor, "cka_rest", k, rest, 0.0


def _between_sites(model: Transformer, held: Record) -> Iterator[Measured]:
    for tensor, sites in (("u", held.read), ("u_hat", held.given), ("trunk", held.trunks)):
        for k in range(1, len(held.outputs)):
            normed = model.residual.part(k).normalises_trunk
            for name, seen in AS_IS:
                raw = name == "" and tensor != "u_hat"
                null = null_cosine(k, normalises_trunk=normed) if raw else None
                values = cosines(seen(sites[k - 1]), seen(sites[k]))
                yield tensor, f"adjacent_cosine{name}", k, values, null
    for k, y in enumerate(held.outputs):
        normed = model.residual.part(k).normalises_trunk
        if k > 0:
            yield "y", "increment_cosine", k, cosines(held.outputs[k - 1], y), 0.0
        yield "y", "increment_trunk_cosine", k, cosines(y, held.trunks[k]), 0.0
        null = 1.0 if normed else 1 / math.sqrt(k + 1)
        yield "y", "relative_update", k, relative_sizes(y, held.trunks[k]), null


def _between_blocks(held: Record, distances: Sequence[int]) -> Iterator[Measured]:
    for distance in distances:
        for k in range(0, len(held.trunks) - 2 * distance, 2):
            values = angular_distance(held.trunks[k], held.trunks[k + 2 * distance])
            yield "trunk", f"angular_distance_{distance}", k, values, 0.5
            yield "trunk", f"angular_distance_{distance}_last", k, values[:, -1], 0.5


def _growth(model: Transformer, held: Record, series: Tensor | None) -> Iterator[Measured]:
    number = len(held.outputs)
    normed = [model.residual.part(min(k, number - 1)).normalises_trunk for k in range(number + 1)]
    means = torch.stack([over_series(sizes(trunk), series) for trunk in held.trunks])
    for k, trunk in enumerate(held.trunks):
        null = float(means[0]) * (1.0 if normed[k] else math.sqrt(k + 1))
        yield "trunk", "size", k, sizes(trunk), null
        streamed = streams(model.residual, held.states[k], k) if k < number else None
        if streamed is not None:
            yield "sum_stream", "size", k, sizes(streamed.sum(-2)), None
    for k, y in enumerate(held.outputs):
        yield "y", "size", k, sizes(y), None
    yield "trunk", "size_slope", None, log_log_slope(means), 0.0 if all(normed) else 0.5


def _within_site(tensor: str, k: int, z: Tensor) -> Iterator[Measured]:
    number, width = z.numel() // z.shape[-1], z.shape[-1]
    baselines = []
    for name, seen in AS_IS[:2]:
        tokens = seen(z)
        baseline = float(random_pair_cosine(tokens))
        baselines.append(baseline)
        yield tensor, f"token_cosine{name}", k, window_cosine(tokens), baseline
    yield tensor, "centred_squared_cosine", k, squared_cosine(z), 1 / math.sqrt(width)
    yield tensor, "dirichlet", k, dirichlet(z, normalised=False), None
    yield tensor, "dirichlet_normalised", k, dirichlet(z, normalised=True), 1 - baselines[0]
    most = float(min(number - 1, width))
    yield tensor, "effective_rank", k, effective_rank(z), most
    yield tensor, "participation_ratio", k, participation_ratio(z), most
    yield tensor, "stable_rank", k, stable_rank(z), most


def _plain(value: Tensor | float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
