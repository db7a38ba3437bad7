"""A training step of K small networks, one by one and at once, for `gpu.py`.

Shapes: K networks, B batch, T tokens, F features.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import ModelConfig, TrainingConfig
from fints.model import Transformer, build
from fints.training import make_loss, make_optimizer
from fints.training.stack import Stack

__all__ = ["measure_together", "table_of"]

TOKENS, FEATURES = 24, 7
STEPS = 5
CASES = [
    (scheme, width, depth, batch)
    for scheme in ("pre_norm", "dynamic_hyper_connections")
    for width, depth in ((32, 2), (32, 16), (128, 4))
    for batch in (64,)
]
SMOKE = [("pre_norm", 16, 1, 4)]


@dataclass(frozen=True)
class _Batch:
    inputs: Tensor
    targets: Tensor


def measure_together(counts: Sequence[int], *, device: str, rounds: int, smoke: bool) -> list[dict[str, Any]]:
    """Return a row a network and K: seconds of a step of one network, a round each, by way.

    A way that fails has its error in the place of its times.
    """
    rows = []
    for scheme, width, depth, batch in SMOKE if smoke else CASES:
        for members in counts:
            config = ModelConfig(residual=scheme, width=width, depth=depth)
            row: dict[str, Any] = {
                "network": f"{scheme}, D {width}, depth {depth}, B {batch}",
                "members": members,
                "times": {},
                "failed": {},
            }
            steps: dict[str, Callable[[], None]] = {}
            for way, make in WAYS.items():
                if way == GRAPH and not device.startswith("cuda"):
                    row["failed"][way] = "needs CUDA"
                    continue
                try:
                    step = make(config, members, batch, device)
                    step()
                    step()
                    steps[way] = step
                except (RuntimeError, ValueError) as error:
                    row["failed"][way] = f"{type(error).__name__}: {error}".splitlines()[0]
            for _ in range(rounds):
                for way, step in steps.items():
                    row["times"].setdefault(way, []).append(_seconds(step, device) / members)
            rows.append(row)
    return rows


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines: milliseconds of a step of one network, and how many times as fast as plain one by one."""
    lines = [
        "K networks: ms a step of each; behind it how many times as fast as plain, one by one",
        f"{'':<44} {'K':>3} " + " ".join(f"{way:>22}" for way in WAYS),
    ]
    for row in rows:
        base = row["times"].get(PLAIN)
        cells = []
        for way in WAYS:
            if way in row["failed"]:
                cells.append(f"{row['failed'][way][:22]:>22}")
                continue
            own = row["times"][way]
            ratio = statistics.median(a / b for a, b in zip(base, own, strict=True)) if base else float("nan")
            cells.append(f"{1e3 * statistics.median(own):14.3f} {ratio:6.2f}x")
        lines.append(f"{row['network']:<44} {row['members']:>3} " + " ".join(cells))
    return lines


def _networks(config: ModelConfig, members: int, device: str) -> list[Transformer]:
    return [
        build(config, num_features=FEATURES, context=TOKENS, seed=seed).to(device).train()
        for seed in range(members)
    ]


def _batch(members: int, batch: int, device: str) -> _Batch:
    generator = torch.Generator().manual_seed(0)
    return _Batch(
        torch.randn(members, batch, TOKENS, FEATURES, generator=generator).to(device),
        torch.randn(members, batch, TOKENS, 1, generator=generator).to(device),
    )


def _one_by_one(
    config: ModelConfig, members: int, batch: int, device: str, *, compiled: bool
) -> Callable[[], None]:
    training, data = TrainingConfig(), _batch(members, batch, device)
    loss = make_loss(training)
    networks = _networks(config, members, device)
    optimizers = [make_optimizer(network, training) for network in networks]
    passes: list[Callable[[Tensor], Any]] = [
        network.compiled() if compiled else network for network in networks
    ]

    def step() -> None:
        for k, (forward, optimizer) in enumerate(zip(passes, optimizers, strict=True)):
            total, count = loss(forward(data.inputs[k]), data.targets[k])
            (total / count.clamp(min=1)).backward()
            nn.utils.clip_grad_norm_(networks[k].parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def _plain(config: ModelConfig, members: int, batch: int, device: str) -> Callable[[], None]:
    return _one_by_one(config, members, batch, device, compiled=False)


def _compiled(config: ModelConfig, members: int, batch: int, device: str) -> Callable[[], None]:
    return _one_by_one(config, members, batch, device, compiled=True)


def _stacked(config: ModelConfig, members: int, batch: int, device: str) -> Callable[[], None]:
    gradients, stack = _gradients(config, members, batch, device)

    def step() -> None:
        gradients()
        for optimizer in stack.optimizers:
            optimizer.step()

    return step


def _graph(config: ModelConfig, members: int, batch: int, device: str) -> Callable[[], None]:
    """Return a step whose passes and clipping are one CUDA graph; a new batch is copied into its inputs."""
    gradients, stack = _gradients(config, members, batch, device)
    # Captured on a side stream after a few steps there, as torch asks.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients()

    def step() -> None:
        graph.replay()
        for optimizer in stack.optimizers:
            optimizer.step()

    return step


def _gradients(
    config: ModelConfig, members: int, batch: int, device: str
) -> tuple[Callable[[], None], Stack]:
    """Return what leaves the clipped gradients of all networks in a stack, and the stack."""
    training, data = TrainingConfig(), _batch(members, batch, device)
    loss = make_loss(training)
    networks = _networks(config, members, device)
    stack = Stack(networks, [training] * members)
    leaves = stack.leaves()
    forward = networks[0].stacked(networks, leaves)

    def of_one(mean: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        total, count = loss(_Mean(mean), targets)
        return total, count

    def gradients() -> None:
        stack.clear(leaves)
        totals, counts = torch.vmap(of_one)(forward(data.inputs).mean, data.targets)
        (totals / counts.clamp(min=1)).sum().backward()
        stack.gather(leaves)
        norms = torch.linalg.vector_norm(stack.gradients, dim=1)
        stack.gradients.mul_((1.0 / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1))

    return gradients, stack


@dataclass(frozen=True)
class _Mean:
    mean: Tensor
    log_scale: None = None
    degrees: None = None


def _seconds(step: Callable[[], None], device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait(device)
    return (time.perf_counter() - started) / STEPS


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


PLAIN, GRAPH = "plain, one by one", "at once, CUDA graph"
WAYS: dict[str, Callable[[ModelConfig, int, int, str], Callable[[], None]]] = {
    PLAIN: _plain,
    "compiled, one by one": _compiled,
    "at once": _stacked,
    GRAPH: _graph,
}
