"""The queue that many machines share: Optuna's trials, put right by whoever finds it empty.

Every trial is a cell, claimed atomically. What is to be done follows from the study's spec and its stored
fits alone, so the final fits of an arm are enqueued by any worker that finds its tuning complete, under a
lock, and what a killed worker left half-done is put right by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fints.config import fingerprint
from fints.study.fits import Cell
from fints.study.grouping import jobs_of
from fints.study.liveness import Liveness
from fints.study.planned import Planned, choose
from fints.study.shared import SharedStore, Worker
from fints.study.trials import (
    MOST_REQUEUES,
    Claim,
    choices_of,
    claim_of,
    enqueue,
    next_trial,
    params_of,
)

__all__ = ["SharedQueue", "Standing"]

# How a trial that FAILed came to its end: an interruption is no failure of the cell.
INTERRUPTED, FAILED, LOST, SUPERSEDED = "interrupted", "failed", "lost", "superseded"


@dataclass
class Standing:
    """Where a study stands: cells by what became of them, all of those that are known so far.

    `given_up` maps a cell that failed too often to its last error; `running` maps a cell's key to the
    worker that has it.
    """

    finished: dict[str, Cell] = field(default_factory=dict)
    waiting: dict[str, Cell] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    given_up: dict[str, tuple[Cell, str]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether nothing is left that could be done."""
        return not self.waiting and not self.running


class SharedQueue:
    """The cells of one study in a shared store.

    Parameters
    ----------
    store : SharedStore
        Where the study is.
    name : str
        Of the study there (study/preset-dataset).
    worker : Worker
        Who claims.
    """

    def __init__(self, store: SharedStore, name: str, worker: Worker) -> None:
        self._store, self._name, self._worker = store, name, worker
        told = store.study(name)
        self.spec, self.facts = told["spec"], told["facts"]
        self.planned = Planned(self.spec)
        self._baselines = [Cell(**tree) for tree in told["baselines"]]
        self._liveness = Liveness(float(self.facts["interval"]))
        self._tuning = {arm: self.planned.tuning_cells(arm) for arm in self.planned.arms}
        self._final: dict[str, list[Cell]] = {}
        self._studies: dict[str, Any] = {}
        self._choices: dict[str, dict[str, list[Any]]] = {}
        self._jobs: dict[str, list[Cell]] = {}

    def settle(self, say: Callable[[str], None] = lambda line: None, *, again: bool = False) -> Standing:
        """Make the queue what it must be, and return where the study stands.

        Claims of dead workers are taken back, cells that no live trial stands for are enqueued, finished
        fits that nobody told are told, and arms whose tuning is complete get their final fits.

        Parameters
        ----------
        say : callable
            Receives a line a claim that was taken back.
        again : bool
            Whether cells that were given up are tried again.
        """
        return self._store.patiently(lambda: self._settle(say, again))

    def _settle(self, say: Callable[[str], None], again: bool) -> Standing:
        standing = Standing()
        with self._store.exclusive(self._name):
            losses = self._store.losses(self._name)
            workers = self._store.workers(self._name)
            for arm, role, cells in self._groups(losses):
                study, jobs = self._open(arm, role, cells)
                told = _with_jobs(losses, jobs)
                last = _last_trials(study, told)
                for job in jobs:
                    self._settle_cell(study, job, last.get(job.key), told, workers, standing, say, again)
                _count(standing, cells, losses)
        return standing

    def standing(self) -> Standing:
        """Return where the study stands, without taking anything back."""
        return self._store.patiently(self._standing)

    def _standing(self) -> Standing:
        standing = Standing()
        losses = self._store.losses(self._name)
        for arm, role, cells in self._groups(losses):
            study, jobs = self._open(arm, role, cells)
            told = _with_jobs(losses, jobs)
            last = _last_trials(study, told)
            for job in jobs:
                _sort(standing, job, last.get(job.key), job.key in told)
            _count(standing, cells, losses)
        return standing

    def claim(self) -> Claim | None:
        """Return the next waiting cell, None if nothing waits; a cell whose fit is stored is told."""
        return self._store.patiently(self._claim)

    def _claim(self) -> Claim | None:
        import optuna
        from optuna.trial import TrialState

        for name, study in self._studies.items():
            while (trial := next_trial(study)) is not None:
                trial.set_user_attr("worker", self._worker.name)
                try:
                    for parameter, choices in self._choices[name].items():
                        trial.suggest_categorical(parameter, choices)
                except optuna.exceptions.UpdateFinishedTrialError:
                    # Stopped for longer than the grace time between two statements.
                    continue
                claim = claim_of(name, trial)
                loss = _with_jobs(self._store.losses(self._name), [claim.cell]).get(claim.cell.key)
                if loss is None:
                    return claim
                told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
                if any(other.user_attrs.get("cell", {}).get("key") == claim.cell.key for other in told):
                    self._end(trial._trial_id, SUPERSEDED, "")
                else:
                    self._tell(claim, loss)
        return None

    def holds(self, claim: Claim) -> bool:
        """Tell whether a claim is still this worker's: it is not after a silence beyond the grace time."""
        from optuna.trial import TrialState

        def held() -> bool:
            trial = self._store.storage.get_trial(claim.trial._trial_id)
            return bool(trial.state == TrialState.RUNNING)

        return self._store.patiently(held)

    def complete(self, claim: Claim, loss: float) -> None:
        """Tell the validation loss of a stored fit; a trial that was taken back stays as it is."""
        self._store.patiently(lambda: self._tell(claim, loss))

    def _tell(self, claim: Claim, loss: float) -> None:
        self._studies[claim.queue].tell(claim.trial.number, loss, skip_if_finished=True)

    def give_back(self, claim: Claim, *, ended: str = INTERRUPTED, error: str = "") -> bool:
        """Give a cell back to be enqueued by the next `settle`; return False if it has failed too often."""
        self._store.patiently(lambda: self._end(claim.trial._trial_id, ended, error))
        return claim.failures + int(ended in (FAILED, LOST)) <= MOST_REQUEUES

    def _end(self, trial_id: int, ended: str, error: str) -> None:
        import optuna
        from optuna.trial import TrialState

        storage = self._store.storage
        try:
            storage.set_trial_user_attr(trial_id, "ended", ended)
            storage.set_trial_user_attr(trial_id, "error", error[:500])
            storage.set_trial_state_values(trial_id, state=TrialState.FAIL)
        except optuna.exceptions.UpdateFinishedTrialError:
            # Somebody has ended it already, this process before an answer was lost, perhaps.
            return

    def _settle_cell(
        self,
        study: Any,
        cell: Cell,
        trial: Any,
        losses: Mapping[str, float],
        workers: Mapping[str, Worker],
        standing: Standing,
        say: Callable[[str], None],
        again: bool,
    ) -> None:
        from optuna.trial import TrialState

        if trial is not None and trial.state == TrialState.RUNNING:
            holder = str(trial.user_attrs.get("worker") or f"trial {trial._trial_id}")
            if self._liveness.dead(holder, workers):
                if cell.key in losses:
                    study.tell(trial.number, losses[cell.key], skip_if_finished=True)
                    trial = self._store.storage.get_trial(trial._trial_id)
                else:
                    self._end(trial._trial_id, LOST, f"its worker {_who(holder)} is dead")
                    say(f"{cell} was taken back from {_who(holder)}, which gives no sign of life")
                    trial = self._store.storage.get_trial(trial._trial_id)
        if cell.key in losses:
            if trial is None or trial.state == TrialState.FAIL:
                _add_complete(study, cell, losses[cell.key])
        elif trial is None or trial.state not in (TrialState.WAITING, TrialState.RUNNING):
            failures = _failures(trial)
            if failures <= MOST_REQUEUES or again:
                enqueue(study, cell, failures=0 if failures > MOST_REQUEUES else failures)
                standing.waiting[cell.key] = cell
                return
        _sort(standing, cell, trial, cell.key in losses)

    def _groups(self, losses: Mapping[str, float]) -> Iterator[tuple[str, str, Sequence[Cell]]]:
        """Yield arm, role and cells of all that is known to be done, the dearest arms first."""
        arms = sorted(self.planned.arms, key=lambda arm: -self._tuning[arm][0].seconds)
        for arm in arms:
            yield arm, "tuning", self._tuning[arm]
        for arm in arms:
            if arm not in self._final and all(cell.key in losses for cell in self._tuning[arm]):
                self._final[arm] = self.planned.final_cells(arm, choose(self._tuning[arm], losses))
            if arm in self._final:
                yield arm, "final", self._final[arm]
        yield "baselines", "baseline", self._baselines

    def _open(self, arm: str, role: str, cells: Sequence[Cell]) -> tuple[Any, list[Cell]]:
        """Return the Optuna study of an arm's role, and what its trials stand for."""
        import optuna

        name = f"{self._name}/{arm}/{role}/{fingerprint([cell.key for cell in cells])[:8]}"
        if name not in self._studies:
            self._studies[name] = optuna.create_study(
                storage=self._store.storage,
                study_name=name,
                sampler=optuna.samplers.RandomSampler(seed=0),
                direction="minimize",
                load_if_exists=True,
            )
            self._jobs[name] = jobs_of(cells)
            self._choices[name] = choices_of(self._jobs[name])
        return self._studies[name], self._jobs[name]


def _last_trials(study: Any, stored: Container[str]) -> dict[str, Any]:
    """Return the trial that stands for each cell: one that told its stored fit, one that runs, the newest."""
    from optuna.trial import TrialState

    def rank(trial: Any, key: str) -> tuple[int, int]:
        told = trial.state == TrialState.COMPLETE and key in stored
        return (2 if told else int(trial.state == TrialState.RUNNING), trial.number)

    last: dict[str, Any] = {}
    for trial in study.get_trials(deepcopy=False):
        key = trial.user_attrs.get("cell", {}).get("key")
        if key is not None and (key not in last or rank(trial, key) > rank(last[key], key)):
            last[key] = trial
    return last


def _with_jobs(losses: Mapping[str, float], jobs: Sequence[Cell]) -> Mapping[str, float]:
    """Return the losses of stored fits, and the mean one of each job whose fits are all stored."""
    whole = {
        job.key: [losses[cell.key] for cell in job.cells()]
        for job in jobs
        if job.members and all(cell.key in losses for cell in job.cells())
    }
    return {**losses, **{key: sum(own) / len(own) for key, own in whole.items()}}


def _count(standing: Standing, cells: Sequence[Cell], losses: Container[str]) -> None:
    """Let what is finished be fits, also those of a job that is not."""
    standing.finished.update((cell.key, cell) for cell in cells if cell.key in losses)


def _sort(standing: Standing, cell: Cell, trial: Any, stored: bool) -> None:
    from optuna.trial import TrialState

    if stored:
        return
    if trial is not None and trial.state == TrialState.RUNNING:
        standing.running[cell.key] = str(trial.user_attrs.get("worker", ""))
    elif trial is not None and trial.state == TrialState.FAIL and _failures(trial) > MOST_REQUEUES:
        standing.given_up[cell.key] = (cell, str(trial.user_attrs.get("error", "")))
    else:
        standing.waiting[cell.key] = cell


def _failures(trial: Any) -> int:
    """Return how often a cell has failed, up to and with its last trial."""
    from optuna.trial import TrialState

    if trial is None or trial.state != TrialState.FAIL:
        return 0
    ended = trial.user_attrs.get("ended", LOST)
    return int(trial.user_attrs.get("failures", 0)) + int(ended in (FAILED, LOST))


def _add_complete(study: Any, cell: Cell, loss: float) -> None:
    """Tell a finished fit that no trial stands for."""
    import optuna

    params = dict(params_of(cell))
    study.add_trial(
        optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE,
            value=loss,
            params={},
            distributions={},
            user_attrs={"cell": cell.to_dict(), "point": params},
        )
    )


def _who(worker: str) -> str:
    host, _, rest = worker.partition(":")
    pid = rest.partition(":")[0]
    return f"process {pid} on {host}" if pid else worker
