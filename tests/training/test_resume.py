"""A fit that is interrupted and resumed is the undisturbed fit, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from fints.diagnostics import Profiler
from fints.training import fit


class _Killed(BaseException):
    """Stands for a signal: nothing in the loop may catch it."""


class Interrupting:
    """Windows that end the process, as it were, when asked for the given time."""

    def __init__(self, inner, after):
        self.inner, self.left = inner, after

    def __len__(self):
        return len(self.inner)

    def gather(self, positions):
        # The identity of the checkpoint is taken from the windows before the first step.
        if self.left == 0:
            raise _Killed
        self.left -= 1
        return self.inner.gather(positions)


def _outcome(model, result):
    fields = {
        name: getattr(result, name)
        for name in (
            "outcome", "reason", "steps", "best_step", "best_validation_loss", "history", "profiles",
        )
    }  # fmt: skip
    return fields, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _assert_equal(a, b):
    assert a[0] == b[0]
    assert a[1].keys() == b[1].keys()
    assert all(torch.equal(a[1][name], b[1][name]) for name in a[1])


@pytest.fixture
def run(network, windows, tmp_path):
    """Fit from the start or from the checkpoint; stop in the step after `killed_after`."""

    def fit_once(config, *, checkpoint=None, every=0, killed_after=None, scheme="dynamic_hyper_connections"):
        model = network(residual=scheme, dropout=0.2)
        train, validation = windows(20), windows(9, 1)
        profiler = Profiler(*train.gather(torch.arange(8)), config)
        given = train if killed_after is None else Interrupting(train, killed_after + 1)
        result = fit(
            model,
            given,
            validation,
            config,
            seed=3,
            checkpoint=checkpoint,
            checkpoint_every=every,
            profiler=profiler,
        )
        return _outcome(model, result)

    return fit_once


@pytest.mark.parametrize("killed_after", [1, 2, 6, 7, 12, 17, 23])
@pytest.mark.parametrize("every", [1, 5, 0])
def test_a_resumed_fit_equals_an_undisturbed_one(run, schedule, tmp_path, killed_after, every):
    config = schedule(profile_every=7)
    path = tmp_path / "fit.pt"
    undisturbed = run(config)
    assert [row["step"] for row in undisturbed[0]["profiles"]] == [0, 0, 7, 7, 14, 14, 21, 21, 24, 24]
    with pytest.raises(_Killed):
        run(config, checkpoint=path, every=every, killed_after=killed_after)
    assert path.exists() == (killed_after >= (every or 6))
    _assert_equal(run(config, checkpoint=path, every=every), undisturbed)


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("killed_after", [3, 8, 10, 17])
def test_a_resumed_fit_stops_early_at_the_same_step(run, schedule, tmp_path, keep, killed_after):
    config = schedule(
        steps=200,
        evaluate_every=4,
        patience=3,
        learning_rate=0.1,
        final_learning_rate_share=1.0,
        keep=keep,
    )
    undisturbed = run(config)
    assert undisturbed[0]["outcome"] == "stopped_early"
    assert 17 < undisturbed[0]["steps"] < 200
    path = tmp_path / "fit.pt"
    with pytest.raises(_Killed):
        run(config, checkpoint=path, every=1, killed_after=killed_after)
    _assert_equal(run(config, checkpoint=path, every=1), undisturbed)


def test_a_fit_killed_many_times_over_still_ends_the_same(run, schedule, tmp_path):
    path = tmp_path / "fit.pt"
    interruptions = 0
    while True:
        try:
            resumed = run(schedule(), checkpoint=path, every=2, killed_after=3)
        except _Killed:
            interruptions += 1
        else:
            break
    assert interruptions == 11
    _assert_equal(resumed, run(schedule()))


def test_checkpoints_alone_change_nothing_and_a_finished_fit_is_not_trained_again(run, schedule, tmp_path):
    path = tmp_path / "fit.pt"
    undisturbed = run(schedule())
    _assert_equal(run(schedule(), checkpoint=path, every=1), undisturbed)
    _assert_equal(run(schedule(), checkpoint=path, every=1, killed_after=0), undisturbed)


def test_a_resumed_fit_diverges_at_the_same_step(run, schedule, tmp_path):
    config = schedule(steps=60, learning_rate=30.0, warmup_steps=50)
    undisturbed = run(config, scheme="pre_norm")
    assert undisturbed[0]["outcome"] == "diverged"
    half = undisturbed[0]["steps"] // 2
    assert half > 0
    path = tmp_path / "fit.pt"
    with pytest.raises(_Killed):
        run(config, checkpoint=path, every=1, killed_after=half, scheme="pre_norm")
    _assert_equal(run(config, checkpoint=path, every=1, scheme="pre_norm"), undisturbed)


def test_a_checkpoint_of_another_fit_is_refused_whatever_differs(network, windows, schedule, tmp_path):
    path = tmp_path / "fit.pt"
    base = {"train": windows(20), "validation": windows(9, 1), "config": schedule(), "seed": 3}

    def start(**changes):
        given = {"model": network()} | base | changes
        return fit(
            given["model"],
            given["train"],
            given["validation"],
            given["config"],
            seed=given["seed"],
            checkpoint=path,
        )

    start()
    for changes in (
        {"model": network(seed=1)},
        {"model": network(dropout=0.1)},
        {"model": network(residual="post_norm")},
        {"train": windows(20, 5)},
        {"train": windows(21)},
        {"validation": windows(9, 2)},
        {"validation": None},
        {"config": schedule(learning_rate=2e-2)},
        {"seed": 4},
    ):
        with pytest.raises(ValueError, match="belongs to another fit"):
            start(**changes)
    assert start().outcome == "finished"


def test_a_damaged_checkpoint_is_refused_before_anything_is_trained(network, windows, schedule, tmp_path):
    path = tmp_path / "fit.pt"
    path.write_bytes(b"half of a checkpoint")
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"fit\.pt cannot be read .* Delete the file to start the fit anew"):
        fit(model, windows(20), None, schedule(), seed=3, checkpoint=path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from fints.config import ModelConfig, TrainingConfig
from fints.model import build
from fints.training import fit

class Windows:
    def __init__(self, number, seed):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(number, 6, 3, generator=generator)
        self.targets = self.inputs[..., 0] + torch.randn(number, 6, generator=generator)
    def __len__(self): return len(self.inputs)
    def gather(self, positions): return self.inputs[positions], self.targets[positions]

config = TrainingConfig(steps=120, warmup_steps=5, batch_size=16, evaluate_every=5, device="cpu")

def train(path, say):
    model = build(ModelConfig(width=8, depth=2, num_heads=2, dropout=0.1), num_features=3, context=6, seed=0)
    result = fit(model, Windows(50, 0), Windows(20, 1), config, seed=1, checkpoint=path, checkpoint_every=1,
                 on_row=lambda row: say("row"))
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    say(json.dumps([result.history, result.best_step, weights]))

def started(path):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with os.fdopen(write, "w", buffering=1) as told:
                train(path, lambda line: told.write(line + "\\n"))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    return child, os.fdopen(read)

def ended(child, told):
    lines = told.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(lines[-1])

folder = Path(sys.argv[1])
whole = ended(*started(folder / "whole.pt"))
for kill in range(5):
    child, told = started(folder / "killed.pt")
    # Rows tell that it trains; a fixed spread of delays then falls on different moments.
    for _ in range(4):
        assert told.readline() == "row\\n"
    time.sleep(0.003 * kill)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    told.close()
print(json.dumps([whole, ended(*started(folder / "killed.pt"))]))
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing(tmp_path):
    """Real signals, also in the middle of writing a checkpoint, which each step does here.

    Each training is a process forked from one that has torch loaded, which takes longer than to train.
    """
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    whole, killed = json.loads(run.stdout)
    assert killed == whole
