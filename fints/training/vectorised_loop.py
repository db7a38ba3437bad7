"""The loop over members whose parameters are stacked; see `fints.training.vectorised`.

Shapes: K members, B batch, T tokens, F features, D width, H horizons.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fints.config import TrainingConfig
from fints.training.batches import Batches, BatchOrder
from fints.training.common import STEPS_A_CHECK, LayerProfiler, calibrated, copied, ending, profile_rows
from fints.training.evaluate import lower_precision, move
from fints.training.losses import LossSum, make_loss
from fints.training.optimizer import learning_rate
from fints.training.progress import DivergedError, Progress
from fints.training.result import Outcome
from fints.training.seeds import derive, reseed
from fints.training.stack import Stack
from fints.training.steering import Place, Stackable
from fints.training.weights import Weights, num_branches

__all__ = ["STACKED", "Group", "Member", "State"]

# The method of a transformer that returns the pass of several at once.
STACKED = "stacked"


class StackedForward(Protocol):
    """The pass of several networks at once; `fints.model.stacked.StackedPass` is one."""

    dropout: float

    def __call__(self, x: Tensor, masks: Sequence[Tensor] = (), at: Place | None = None) -> Any:
        """Return forecasts whose fields are (K, B, T, H), of x (K, B, T, F)."""
        ...

    def mask_shapes(self, x: Tensor) -> list[tuple[int, ...]]:
        """Return the shapes (B, T, D) of one network's masks, in the order in which they are drawn."""
        ...


@dataclass(frozen=True, kw_only=True)
class Member:
    """One of the fits: what `fints.training.fit` takes of each."""

    model: nn.Module
    train: Batches
    validation: Batches | None
    config: TrainingConfig
    seed: int
    profiler: LayerProfiler | None = None
    on_row: Callable[[dict[str, Any]], None] | None = None
    estimated_bytes: int | None = None
    steering: Stackable | None = None


@dataclass(eq=False)
class State:
    """A member as far as it has come."""

    member: Member
    progress: Progress = field(default_factory=Progress)
    kept: dict[str, Tensor] = field(default_factory=dict)
    outcome: Outcome = "finished"
    reason: str = ""
    ended: bool = False

    def __post_init__(self) -> None:
        config, steering = self.member.config, self.member.steering
        self.train = self.member.train if steering is None else steering.windows(self.member.train)
        self.order = BatchOrder(len(self.train), config.batch_size, self.member.seed)
        self.kept.update(copied(self.member.model))

    @property
    def stopped(self) -> bool:
        """Whether its validation loss has not improved for as long as it may."""
        patience = self.member.config.patience
        return patience > 0 and self.progress.waited >= patience

    def end(self, outcome: Outcome, reason: str) -> None:
        """Note how and why it ended."""
        self.outcome, self.reason, self.ended = outcome, reason, True

    def put_back(self, device: torch.device) -> None:
        """Leave the model with the weights that count."""
        model = self.member.model
        if self.outcome == "out_of_memory" and self.progress.step == 0:
            model.to("cpu")
        failed = self.outcome in ("diverged", "out_of_memory")
        if failed or (self.member.config.keep == "best" and self.progress.best_loss is not None):
            model.load_state_dict(self.kept)
        model.eval()


class _Fields(NamedTuple):
    mean: Tensor
    log_scale: Tensor | None = None
    degrees: Tensor | None = None


class Group:
    """The members that are still being trained, and one step of all of them."""

    def __init__(self, states: list[State], device: torch.device) -> None:
        self.alive = list(states)
        self.device = device
        self.config = states[0].member.config
        self.loss = make_loss(self.config)
        self.pending: list[Tensor] = []
        self.stack: Stack | None = None
        self.clock = time.perf_counter()

    def run(self) -> None:
        """Train until every member has ended."""
        self._begin()
        config, steps_a_check = self.config, STEPS_A_CHECK[self.device.type]
        for step in range(config.steps):
            if not self.alive:
                return
            number = step + 1
            last = number == config.steps
            evaluation_due = last or number % config.evaluate_every == 0
            profile_due = last or config.profiled(number)
            self._gradients(step)
            if len(self.pending) >= steps_a_check or evaluation_due or profile_due:
                self._check(step)
                if not self.alive:
                    return
            assert self.stack is not None
            may_profile = profile_due or (
                evaluation_due and any(state.member.config.patience > 0 for state in self.alive)
            )
            before = self.stack.values.clone() if may_profile else None
            self._update(step)
            self._charge(self.alive)
            profiled = False
            if evaluation_due:
                self._evaluate(number)
            for place, state in enumerate(self.alive):
                if not state.ended and (profile_due or (evaluation_due and state.stopped)):
                    assert before is not None
                    self._profile(state, number, self.stack.named(self.stack.values[place] - before[place]))
                    profiled = True
            if profiled:
                self.stack.tie()
            for state in self.alive:
                if not state.ended and (last or state.stopped):
                    early = state.stopped and not last
                    state.end(
                        "stopped_early" if early else "finished", ending(state.progress, state.member.config)
                    )
            self._compact()

    def leave(self) -> None:
        """Give every network weights of its own."""
        if self.stack is not None:
            self.stack.release()
        self.stack = None
        self.alive = []
        # Held in a circle with this one, which would stay in memory until the collector comes.
        for name in ("forward", "leaves", "weights", "steering", "inputs"):
            self.__dict__.pop(name, None)

    def _begin(self) -> None:
        for state in self.alive:
            model = state.member.model
            model.to(self.device)
            if calibrated(model, state.train, state.member.seed, self.device):
                state.kept.update(copied(model))
            if state.member.profiler is not None:
                rows = self._rows(state, 0, {})
                if self.config.profile_every > 0 or self.config.profile_at:
                    state.progress.profiles.extend(rows)
            model.train()
            self._charge([state], aside=True)
        models = [state.member.model for state in self.alive]
        self.stack = Stack(models, [state.member.config for state in self.alive])
        self._connect()

    def _connect(self) -> None:
        """Make the pass of the members that are left."""
        assert self.stack is not None
        models = self.stack.models
        make = getattr(models[0], STACKED)
        self.leaves = self.stack.leaves()
        self.forward = cast(StackedForward, make(models, self.leaves))
        first, *rest = (state.member.steering for state in self.alive)
        self.steering = None if first is None else first.together(rest)
        self.weights = Weights(
            named=self.leaves, stacked=True, num_branches=num_branches(models[0]), evaluated=self._evaluated
        )

    def _gradients(self, step: int) -> None:
        """Leave the clipped gradient of each member in the stack."""
        assert self.stack is not None
        batches = [state.train.gather(state.order(step)) for state in self.alive]
        self.inputs, targets = self._moved(batches)
        self.stack.clear(self.leaves)
        passed = partial(self._losses, self.inputs, targets, self._masks(self.inputs, step))
        if self.steering is None:
            totals, counts = passed()
            (totals / counts.clamp(min=1)).sum().backward()
        else:
            totals, counts = self.steering.gradients(self.weights, passed, step=step)
        self.stack.gather(self.leaves)
        norms = torch.linalg.vector_norm(self.stack.gradients, dim=1)
        limits = torch.tensor([state.member.config.clip_norm for state in self.alive]).to(self.device)
        self.stack.gradients.mul_((limits / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1))
        self.pending.append(torch.stack([totals.detach(), counts.to(totals.dtype), norms.to(totals.dtype)]))

    def _losses(
        self, inputs: Tensor, targets: Tensor, masks: Sequence[Tensor], at: Place | None = None
    ) -> LossSum:
        """Return the loss and the number of targets of each member (K,)."""
        with lower_precision(self.config, self.device):
            forecast = self.forward(inputs, masks, at)
        fields = [each for each in forecast if each is not None]
        return LossSum(*torch.vmap(self._loss)(targets, *fields))

    @torch.no_grad()
    def _evaluated(self, inputs: Tensor) -> Tensor:
        mean: Tensor = self.forward(inputs).mean
        return mean

    def _loss(self, targets: Tensor, *fields: Tensor) -> tuple[Tensor, Tensor]:
        total, number = self.loss(_Fields(*fields), targets)
        return total, number

    def _masks(self, inputs: Tensor, step: int) -> list[Tensor]:
        """Return what the output of each sublayer is multiplied by: each member's own dropout at `step`."""
        share = self.forward.dropout
        if share == 0:
            return []
        shapes = self.forward.mask_shapes(inputs)
        drawn: list[list[Tensor]] = []
        for state in self.alive:
            # What the network by itself would draw, layer after layer, from the generator of its device.
            reseed(derive(state.member.seed, "dropout", step), self.device)
            drawn.append([dropout(torch.ones(shape, device=self.device), share) for shape in shapes])
        return [torch.stack(of_layer) for of_layer in zip(*drawn, strict=True)]

    def _moved(self, batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        inputs = torch.stack([batch[0] for batch in batches])
        targets = torch.stack([batch[1] for batch in batches])
        return move((inputs, targets), self.device)

    def _check(self, step: int) -> None:
        """Read the numbers of the pending steps; a member whose are not finite leaves the stack."""
        if not self.pending:
            return
        rows = torch.stack(self.pending).tolist()
        first = step + 2 - len(rows)
        self.pending.clear()
        for place, state in enumerate(self.alive):
            try:
                for number, (totals, counts, norms) in enumerate(rows, start=first):
                    state.progress.count(
                        totals[place], counts[place], norms[place], number=number, config=state.member.config
                    )
            except DivergedError as error:
                self._diverged(state, error)
        self._compact()

    def _diverged(self, state: State, error: DivergedError) -> None:
        state.progress.step = error.step
        state.end("diverged", str(error))

    def _update(self, step: int) -> None:
        assert self.stack is not None
        optimizers = self.stack.optimizers
        shares = []
        for state, optimizer in zip(self.alive, optimizers, strict=True):
            rate = learning_rate(step, state.member.config)
            shares.append(rate / state.member.config.learning_rate)
            for group in optimizer.param_groups:
                group["lr"] = rate
            state.progress.step = step + 1

        def take() -> None:
            for optimizer in optimizers:
                optimizer.step()

        if self.steering is None:
            take()
        else:
            rate_share = torch.tensor(shares, dtype=torch.float64)
            self.steering.update(self.weights, take, self.inputs, rate_share=rate_share)

    def _evaluate(self, number: int) -> None:
        rows = [state.progress.row(state.member.config) for state in self.alive]
        losses: list[float | None] = [None] * len(rows)
        if self.alive[0].member.validation is not None:
            for state in self.alive:
                state.member.model.eval()
            losses = list(self._validation())
            for state in self.alive:
                state.member.model.train()
        for state, row, value in zip(self.alive, rows, losses, strict=True):
            if value is not None and not math.isfinite(value):
                reason = f"the validation loss is not finite after step {number}"
                self._diverged(state, DivergedError(number, reason))
                continue
            row["validation_loss"] = value
            state.progress.history.append(row)
            if state.member.on_row is not None:
                state.member.on_row(dict(row))
            if state.progress.improves(value) or state.member.config.keep == "last":
                state.kept.update(copied(state.member.model))
        self._charge(self.alive, aside=True)

    def _validation(self) -> list[float]:
        """Return the mean loss of each member over its validation windows; see `evaluate`."""
        sets = [state.member.validation for state in self.alive]
        numbers = [len(each) for each in sets if each is not None]
        size = self.config.batch_size
        sums = []
        with torch.no_grad():
            for start in range(0, max(numbers), size):
                found: dict[int, tuple[Tensor, Tensor]] = {}
                batches = []
                for batches_of, count in zip(sets, numbers, strict=True):
                    assert batches_of is not None
                    # Members that share their windows share a batch of them.
                    if id(batches_of) not in found:
                        found[id(batches_of)] = _filled(batches_of, start, size, count)
                    batches.append(found[id(batches_of)])
                sums.append(torch.stack(self._losses(*self._moved(batches), ())))
            totals, counts = torch.stack(sums).cpu().double().sum(0).tolist()
        for count, number in zip(counts, numbers, strict=True):
            if count == 0:
                raise ValueError(
                    f"an evaluation needs at least one target; got {number} windows without any. "
                    "Give a set whose decision dates have outcomes."
                )
        return [total / count for total, count in zip(totals, counts, strict=True)]

    def _profile(self, state: State, number: int, update: Mapping[str, Tensor]) -> None:
        if state.member.profiler is not None:
            state.progress.profiles.extend(self._rows(state, number, update))
            state.member.model.train()
        self._charge([state], aside=True)

    def _rows(self, state: State, step: int, update: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        profiler, model = state.member.profiler, state.member.model
        assert profiler is not None
        return profile_rows(profiler, model, step, lambda: update, state.progress, self.device)

    def _compact(self) -> None:
        """Go on with the members that have not ended."""
        left = [place for place, state in enumerate(self.alive) if not state.ended]
        if len(left) == len(self.alive):
            return
        assert self.stack is not None
        self.stack.keep(left)
        self.alive = [self.alive[place] for place in left]
        # Of the step under way, whose update is still to come if a member has just diverged.
        self.inputs = self.inputs[left]
        if left:
            self._connect()

    def _charge(self, states: Sequence[State], *, aside: bool = False) -> None:
        """Share out the time since the last call."""
        now = time.perf_counter()
        for state in states:
            state.progress.seconds += (now - self.clock) / len(states)
            if aside:
                state.progress.seconds_aside += (now - self.clock) / len(states)
        self.clock = now


def _filled(batches: Batches, start: int, size: int, number: int) -> tuple[Tensor, Tensor]:
    """Return the windows from `start` on, filled up to `size` by such as have no target."""
    positions = torch.arange(start, start + size)
    inputs, targets = batches.gather(positions.clamp(max=number - 1))
    filled = number - start
    if filled < size:
        targets = targets.clone()
        targets[max(0, filled) :] = torch.nan
    return inputs, targets
