"""Optuna is the queue: one Optuna study an arm and role, every trial a cell, claimed atomically."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fints.config import fingerprint
from fints.study.embedded import embedded
from fints.study.fits import Cell

__all__ = ["Claim", "Queue", "choices_of", "claim_of", "enqueue", "next_trial", "open_storage", "params_of"]

MOST_REQUEUES = 3
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Claim:
    """A trial that this driver runs, and its cell; `failures` counts its earlier failed tries."""

    queue: str
    trial: Any
    cell: Cell
    failures: int


def _in_one_line(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method of `Queue` raise a RuntimeError that names the database where that fails."""

    @functools.wraps(method)
    def wrapped(*given: P.args, **named: P.kwargs) -> T:
        import optuna
        import sqlalchemy.exc

        try:
            return method(*given, **named)
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            queue: Any = given[0]
            line = str(error.__cause__ or error).strip().splitlines()[0]
            raise RuntimeError(
                f"the queue in {queue._storage.engine.url} must stay usable and failed ({line}): "
                "mend it, or move it away, and run again; finished fits are kept."
            ) from error

    return wrapped


class Queue:
    """The cells of one study folder as Optuna trials.

    Every method raises a RuntimeError, in one line, where the database fails.

    All trials of an arm's role are enqueued before the first of them starts. The caller holds the
    study folder, so a trial found RUNNING at `open` belongs to a driver that died.
    """

    def __init__(self, storage: Any, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix
        self._studies: dict[str, Any] = {}
        self._choices: dict[str, dict[str, list[Any]]] = {}

    @_in_one_line
    def add(self, arm: str, role: str, cells: Sequence[Cell], loss: Callable[[str], float | None]) -> None:
        """Enqueue the cells of one arm and role that no live trial stands for.

        Parameters
        ----------
        arm, role : str
            Whose cells these are.
        cells : sequence of Cell
            All of them, in their fixed order.
        loss : callable
            Key to validation loss, None where the fit is not there. A trial that a dead driver left
            RUNNING is completed if its fit is there, else it fails and its cell is enqueued again.
        """
        import optuna
        from optuna.trial import TrialState

        name = f"{self._prefix}/{arm}/{role}/{fingerprint([cell.key for cell in cells])[:8]}"
        if name in self._studies:
            return
        study = optuna.create_study(
            storage=self._storage,
            study_name=name,
            sampler=optuna.samplers.RandomSampler(seed=0),
            direction="minimize",
            load_if_exists=True,
        )
        alive, failures = set(), {}
        for trial in study.get_trials(deepcopy=False):
            key = trial.user_attrs.get("cell", {}).get("key", "")
            found = loss(key)
            if trial.state == TrialState.RUNNING and found is None:
                study.tell(trial.number, state=TrialState.FAIL)
                failures[key] = trial.user_attrs.get("failures", 0)
            elif trial.state == TrialState.RUNNING:
                study.tell(trial.number, found)
                alive.add(key)
            elif trial.state == TrialState.WAITING or (
                trial.state == TrialState.COMPLETE and found is not None
            ):
                alive.add(key)
        for cell in cells:
            if cell.key not in alive:
                enqueue(study, cell, failures=failures.get(cell.key, 0))
        self._studies[name] = study
        self._choices[name] = choices_of(cells)

    @_in_one_line
    def claim(self) -> Claim | None:
        """Return the next waiting trial, None if nothing waits."""
        for name, study in self._studies.items():
            if (trial := next_trial(study)) is not None:
                for field, choices in self._choices[name].items():
                    trial.suggest_categorical(field, choices)
                return claim_of(name, trial)
        return None

    @_in_one_line
    def complete(self, claim: Claim, loss: float) -> None:
        """Tell the validation loss of a finished fit; a diverged one is infinite, an outcome too."""
        self._studies[claim.queue].tell(claim.trial, loss)

    @_in_one_line
    def requeue(self, claim: Claim, *, failed: bool) -> bool:
        """Give a cell back; return False if it has failed too often and stays out.

        Parameters
        ----------
        claim : Claim
            What was being run.
        failed : bool
            True for a failure of the fit itself, False for an interruption, which is not counted.
        """
        from optuna.trial import TrialState

        study = self._studies[claim.queue]
        study.tell(claim.trial, state=TrialState.FAIL)
        failures = claim.failures + int(failed)
        if failures > MOST_REQUEUES:
            return False
        enqueue(study, claim.cell, failures=failures)
        return True

    @_in_one_line
    def num_waiting(self) -> int:
        """Return the number of trials that wait."""
        from optuna.trial import TrialState

        return sum(
            len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
            for study in self._studies.values()
        )


def next_trial(study: Any) -> Any:
    """Claim the next waiting trial of one of our studies, and return it; None if nothing waits."""
    from optuna.trial import TrialState

    while study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        trial = study.ask()
        if "cell" in trial.user_attrs:
            return trial
        # Somebody else was faster and Optuna made up a trial: it ends at once.
        study.tell(trial, state=TrialState.FAIL)
    return None


def claim_of(queue: str, trial: Any) -> Claim:
    """Return what a trial of the Optuna study `queue` stands for."""
    attributes = trial.user_attrs
    return Claim(queue, trial, Cell(**attributes["cell"]), int(attributes.get("failures", 0)))


def open_storage(path: Path) -> Any:
    """Open (or create) Optuna's tables, embedded in a file.

    Raises
    ------
    ValueError
        If the file cannot be used.
    """
    import optuna
    import sqlalchemy.exc

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = embedded(path, _create_tables)
    try:
        return optuna.storages.RDBStorage(url)
    # Tables of another release are a RuntimeError.
    except (sqlalchemy.exc.SQLAlchemyError, ValueError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{path} must be a database of Optuna's and cannot be opened ({line}): move it away and run "
            "again, which makes it anew from the finished fits."
        ) from error


def _create_tables(url: str) -> None:
    import optuna

    storage = optuna.storages.RDBStorage(url)
    storage.remove_session()
    storage.engine.dispose()


def params_of(cell: Cell) -> Mapping[str, Any]:
    """Return what a trial shows of its cell: the design point, or fold and seed, or which fits it makes."""
    if cell.members:
        return {"fits": str(cell)}
    return cell.point if cell.role == "tuning" else {"fold": cell.fold, "seed": cell.seed}


def choices_of(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """Return each field's values in order of appearance: a trial's space must not vary in a study."""
    choices: dict[str, list[Any]] = {}
    for cell in cells:
        for field, value in params_of(cell).items():
            known = choices.setdefault(field, [])
            if value not in known:
                known.append(value)
    return choices


def enqueue(study: Any, cell: Cell, *, failures: int) -> None:
    """Let a cell wait in an Optuna study; `failures` counts its earlier failed tries."""
    study.enqueue_trial(dict(params_of(cell)), user_attrs={"cell": cell.to_dict(), "failures": failures})
