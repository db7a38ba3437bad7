"""What can change a number changes a fit's key; what cannot, does not."""

from __future__ import annotations

import ast
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fints.config import Experiment, override
from fints.study.baselines import KNOWN, SOURCES
from fints.study.fingerprint import (
    AFFECTS_BASELINES,
    AFFECTS_NUMBERS,
    PACKAGE,
    device_type,
    fit_key,
    number_sources,
    sources_hash,
    torch_version,
)
from fints.study.panel_cells import PANEL_SOURCES

FOLD = {
    "train": ["2000-01-03", "2008-12-31"],
    "validation": ["2009-01-02", "2009-12-31"],
    "test": ["2010-01-04", "2010-12-31"],
}
OTHER: dict[str, Any] = {
    "data.features": ["return_1"],
    "data.target": "log_return",
    "data.unscaled": ["return_1"],
    "data.window_scaled": ["return_1"],
    "model.residual": "post_norm",
    "model.residual_options": {"num_streams": 2},
    "model.norm": "rms_norm",
    "model.value_residual": "fixed",
    "model.activation": "relu",
    "model.positions": "learned",
    "model.initialiser": "xavier_uniform",
    "model.forecast_from": "last_token",
    "training.loss": "huber",
    "training.betas": [0.8, 0.9],
    "training.keep": "last",
    "training.profile_at": [7],
    "training.precision": "bfloat16",
    "training.device": "cpu",
    "training.optimizer": "sgd",
    "training.interventions": {"gradient_equaliser": {"dose": 1.0}},
    "data.min_valid": 0.25,
    "model.width": 64,
    "model.num_heads": 8,
    "training.final_learning_rate_share": 0.5,
    "model.dropout": 0.25,
}


def key(experiment: Experiment | None = None, **changes: Any) -> str:
    values: dict[str, Any] = {
        "role": "final",
        "fold": FOLD,
        "seed": 1,
        "checksum": "abc",
        "until": "2018-01-01",
        "sources": "def",
        "device": "cpu",
        "torch": "2.11.0",
    }
    return fit_key(experiment or Experiment(), **values | changes)


def fields() -> list[str]:
    return [
        f"{part.name}.{item.name}"
        for part in dataclasses.fields(Experiment)
        for item in dataclasses.fields(getattr(Experiment(), part.name))
    ]


@pytest.mark.parametrize("dotted", fields())
def test_every_field_of_an_experiment_changes_the_key(dotted: str) -> None:
    part, name = dotted.split(".")
    value = getattr(getattr(Experiment(), part), name)
    if dotted == "model.head":
        changed = override(Experiment(), {"model.head": "gaussian", "training.loss": "nll"})
        assert key(changed) != key(
            override(Experiment(), {"model.head": "student_t", "training.loss": "nll"})
        )
        return
    if dotted in OTHER:
        other = OTHER[dotted]
    else:
        other = (
            (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 0.5
        )
    assert key(override(Experiment(), {dotted: other})) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "tuning"},
        {"seed": 2},
        {"checksum": "abd"},
        {"until": None},
        {"sources": "deg"},
        {"device": "cuda"},
        {"torch": "2.12.0"},
        *({"fold": FOLD | {part: ["1999-01-04", FOLD[part][1]]}} for part in FOLD),
        *({"fold": FOLD | {part: [FOLD[part][0], "2011-01-03"]}} for part in FOLD),
    ],
)
def test_role_fold_seed_data_and_code_change_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_auto_is_what_it_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study begun without a GPU and resumed with one must not mix the two."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    found = set()
    for there in (False, True):
        device_type.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        found.add(device_type("auto"))
    device_type.cache_clear()
    assert found == {"cpu", "cuda"}
    assert device_type("cuda:1") == "cuda"
    assert torch.__version__.startswith(torch_version())


def test_the_same_fit_has_the_same_key_for_ever() -> None:
    assert key() == key()
    assert len(key()) == 16


@pytest.fixture
def package(tmp_path: Path) -> Path:
    copy = tmp_path / "fints"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "_datasets"))
    return copy


def test_words_about_code_void_no_fit(package: Path) -> None:
    before = sources_hash(package)
    loop = package / "training" / "loop.py"
    text = loop.read_text(encoding="utf-8")
    loop.write_text("# A remark.\n" + text, encoding="utf-8")
    sources_hash.cache_clear()
    assert sources_hash(package) == before
    tree = ast.parse(text)
    tree.body[0] = ast.Expr(ast.Constant("Another docstring."))
    loop.write_text(ast.unparse(tree), encoding="utf-8")
    sources_hash.cache_clear()
    assert sources_hash(package) == before


@pytest.mark.parametrize(
    "name", ["study/report.py", "study/cli.py", "study/tracking.py", "evaluation/metrics.py"]
)
def test_code_that_makes_no_forecast_voids_no_fit(package: Path, name: str) -> None:
    before = sources_hash(package)
    (package / name).write_text("x = 1\n", encoding="utf-8")
    sources_hash.cache_clear()
    assert sources_hash(package) == before


@pytest.mark.parametrize(
    "name",
    [
        "config.py",
        "forecaster.py",
        "data/windows.py",
        "residual/base.py",
        "model/heads.py",
        "training/loop.py",
        "residual/feed_forward_kernels.cpp",
        "residual/products.h",
        "evaluation/walk_forward.py",
        "diagnostics/profile.py",
        "study/fits.py",
        "data/a_new_file.py",
    ],
)
def test_code_that_makes_forecasts_voids_them(package: Path, name: str) -> None:
    before = sources_hash(package)
    path = package / name
    path.write_text(
        (path.read_text(encoding="utf-8") if path.exists() else "") + "\nx = 1\n", encoding="utf-8"
    )
    sources_hash.cache_clear()
    assert sources_hash(package) != before


def test_no_file_that_a_fit_imports_is_forgotten() -> None:
    """Follow the imports of the sources: they must not leave the list, but for what only judges or writes."""
    harmless = {"evaluation", "study/cells.py", "study/store.py", "evaluation/__init__.py", "__init__.py"}
    # Words of messages, and what only a baseline runs through.
    harmless |= {"saved.py", "words.py", "study/baselines.py"}
    for name in imported_by(set(number_sources())):
        assert listed_in(AFFECTS_NUMBERS, name) or name in harmless, f"{name} is imported, yet no source"


def test_no_file_that_a_fit_on_a_simulated_panel_imports_is_forgotten() -> None:
    harmless = {
        "evaluation",
        "study/store.py",
        "evaluation/__init__.py",
        "__init__.py",
        "words.py",
        "saved.py",
    }
    for name in imported_by(set(number_sources(entries=PANEL_SOURCES))):
        assert listed_in(PANEL_SOURCES, name) or name in harmless, f"{name} is imported, yet no source"


@pytest.mark.parametrize("baseline", KNOWN)
def test_no_file_that_a_baseline_imports_is_forgotten(baseline: str) -> None:
    """What one kind of baseline imports inside the branch that needs it is a source of that kind alone."""
    entries = (*AFFECTS_BASELINES, *SOURCES.get(baseline, ()))
    # The file of the prevailing mean holds metrics too; no forecast runs through what they import.
    harmless = {"evaluation", "evaluation/__init__.py", "evaluation/serial.py", "evaluation/distribution.py"}
    harmless |= {"__init__.py", "words.py", "config.py"}
    others = {"evaluation/arma_garch.py", "evaluation/regressions.py", "deep_baselines.py"}
    for name in imported_by(set(number_sources(entries=entries))):
        assert listed_in(entries, name) or name in harmless | others, f"{name} is imported, yet no source"
    wanted = {"arma_garch": "evaluation/arma_garch.py", "mlp": "deep_baselines.py"}
    wanted["gradient_boosting"] = "evaluation/regressions.py"
    assert listed_in(entries, wanted.get(baseline, "data/targets.py"))


def imported_by(paths: set[Path]) -> set[str]:
    """Return the files and packages of fints, relative to it, that the files import."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fints."):
                module = node.module.removeprefix("fints.").replace(".", "/")
                found.add(f"{module}.py" if (PACKAGE / f"{module}.py").is_file() else module)
    return found


def listed_in(entries: tuple[str, ...], name: str) -> bool:
    return any(entry == name or name.startswith(f"{entry}/") for entry in entries)
