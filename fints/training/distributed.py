"""One fit on several devices: each process takes a part of every batch, and all take the same step.

For a network whose activations are too much for one device, or too slow on it; weights, gradients and the
optimiser's state still have to fit each one. The processes are those of torchrun::

    from fints.training.distributed import ranks

    with ranks() as here:
        forecaster = Forecaster(experiment).fit(panel)
        if here.first:
            forecaster.save("forecaster")

Started by ``torchrun --nproc-per-node 2 script.py``; under plain ``python`` the same file is a plain fit.

Shapes: B batch, T tokens, F features, H horizons, R ranks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training import loop
from fints.training.batches import Batches
from fints.training.common import LayerProfiler
from fints.training.identity import fit_identity
from fints.training.losses import LossSum
from fints.training.result import FitResult
from fints.training.seeds import derive, reseed
from fints.training.steering import Steering

__all__ = ["RankLostError", "Ranks", "fit", "ranks", "sharing"]


class RankLostError(RuntimeError):
    """A process of a fit has ended, or cannot go on, so that none of them can."""


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this is: `number` of `total`."""

    number: int
    total: int

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and reports."""
        return self.number == 0


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Join the processes that torchrun started; alone where it did not.

    On CUDA each takes the device of its local rank. If one of them ends, so do the others, with code 1 and a
    sentence.

    Raises
    ------
    ValueError
        If there are more processes on this machine than CUDA devices.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Ranks(0, 1)
        return
    cuda = torch.cuda.is_available()
    if cuda:
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"--nproc-per-node must be at most the number of devices, {torch.cuda.device_count()}; got "
                f"{os.environ['LOCAL_WORLD_SIZE']}."
            )
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda and dist.is_nccl_available() else "gloo")
    here = Ranks(dist.get_rank(), dist.get_world_size())
    try:
        yield here
    except RankLostError as error:
        # The others are gone or blocked: there is nobody to take leave of.
        print(f"error: rank {here.number} of {here.total}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    else:
        dist.destroy_process_group()


def sharing() -> int:
    """Return how many processes share each batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def fit(
    model: nn.Module,
    train: Batches,
    validation: Batches | None,
    config: TrainingConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    checkpoint_every: int = 0,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    profiler: LayerProfiler | None = None,
    estimated_bytes: int | None = None,
    compile_backend: str | None = None,
    steering: Steering | None = None,
) -> FitResult:
    r"""Train `model` as `fints.training.loop.fit` does, on all ranks if there are several.

    .. math:: g = \nabla_\theta \frac{\sum_{b=1}^{B} \ell_b}{N} = \sum_{r=1}^{R} \nabla_\theta
        \frac{\sum_{b \equiv r} \ell_b}{N}

    N counts the targets of the whole batch, so the step is that of one process with all B windows, but for
    the rounding of sums; every rank ends with the same weights. Dropout draws masks of their own on each
    rank, so with it the numbers are another draw of the same fit.

    Rank 0 alone calls `on_row`, profiles and writes `checkpoint`, from which all go on; it may be that of a
    fit by one process. Every rank passes over all of `validation`. `estimated_bytes` is for one rank.

    Raises
    ------
    ValueError
        As in `fints.training.loop.fit`, and if the batch cannot be shared out evenly, the pass is to be
        compiled, recomputed or steered, or the ranks do not begin from the same network, data, schedule and
        seed.
    RankLostError
        If a rank has ended, or has too little memory.
    """
    if sharing() == 1:
        return loop.fit(
            model,
            train,
            validation,
            config,
            seed=seed,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            on_row=on_row,
            profiler=profiler,
            estimated_bytes=estimated_bytes,
            compile_backend=compile_backend,
            steering=steering,
        )
    here = Ranks(dist.get_rank(), dist.get_world_size())
    _refuse(here, config, steering)
    _refuse_others(fit_identity(model, train, validation, config, seed))
    # From here on training mode means a step: only then is a batch shared out.
    model.eval()
    with _own(checkpoint, here) as file:
        result = loop.fit(
            model,
            train,
            validation,
            config,
            seed=seed,
            checkpoint=file,
            checkpoint_every=checkpoint_every,
            on_row=on_row if here.first else None,
            profiler=profiler if here.first else None,
            estimated_bytes=estimated_bytes,
            steering=_Shared(model, here, seed),
        )
    if result.outcome == "out_of_memory":
        raise RankLostError(result.reason)
    return result


class _Shared:
    """The steering of a fit that ranks share: windows of each step, and the sum of gradients over ranks."""

    def __init__(self, model: nn.Module, here: Ranks, seed: int) -> None:
        self._model, self._here, self._seed = model, here, seed

    def windows(self, train: Batches) -> Batches:
        return _Part(train, self._model, self._here)

    def gradients(self, model: nn.Module, loss: Callable[[], LossSum], *, step: int) -> LossSum:
        if not self._here.first:
            device = next(model.parameters()).device
            reseed(derive(self._seed, "dropout", step, self._here.number), device)
        total, number = loss()
        sums = torch.stack((total.detach(), number.to(total.dtype)))
        _sum([sums])
        (total / sums[1].clamp(min=1)).backward()
        _sum([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        return LossSum(sums[0], sums[1])

    def update(
        self, model: nn.Module, take: Callable[[], None], inputs: Tensor, *, rate_share: float
    ) -> None:
        take()


class _Part:
    """Windows of which a rank sees every R-th in a step, and all otherwise."""

    def __init__(self, whole: Batches, model: nn.Module, here: Ranks) -> None:
        self._whole, self._model, self._here = whole, model, here

    def __len__(self) -> int:
        return len(self._whole)

    def gather(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._model.training:
            positions = positions[self._here.number :: self._here.total]
        return self._whole.gather(positions)


def _sum(tensors: list[Tensor]) -> None:
    """Add tensors over all ranks, in place, in one message for each kind of number."""
    for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
        group = [tensor for tensor in tensors if tensor.dtype == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        try:
            dist.all_reduce(flat)
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RankLostError(f"another rank has ended, so this one ends too ({line}).") from error
        for tensor, found in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(found.view_as(tensor))


def _refuse(here: Ranks, config: TrainingConfig, steering: Steering | None) -> None:
    if config.batch_size % here.total:
        raise ValueError(
            f"training.batch_size must be a multiple of the number of ranks, {here.total}; got "
            f"{config.batch_size}."
        )
    if config.compile or config.activation_checkpointing or steering is not None:
        raise ValueError(
            "a fit on several ranks takes the plain pass: set training.compile and "
            "training.activation_checkpointing to false, and leave training.interventions empty."
        )


def _refuse_others(identity: str) -> None:
    """Refuse ranks that would not train one network."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, identity)
    if len({*found}) > 1:
        raise ValueError(
            "all ranks must begin from the same network, data, schedule and seed, and do not: give every one "
            "the same script, files and fints."
        )


@contextmanager
def _own(checkpoint: Path | None, here: Ranks) -> Iterator[Path | None]:
    """Give a rank a file to go on from: the real one to rank 0, a copy of its own to any other."""
    if checkpoint is None:
        yield None
        return
    content = [checkpoint.read_bytes() if here.first and checkpoint.exists() else None]
    dist.broadcast_object_list(content, src=0)
    if here.first:
        yield checkpoint
        return
    with tempfile.TemporaryDirectory(prefix="fints-rank-") as folder:
        copy = Path(folder) / checkpoint.name
        if content[0] is not None:
            copy.write_bytes(content[0])
        yield copy
