"""The verbs of a study: what they print, and the one line they print when they cannot."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from fints.data import simulate
from fints.study import checkout, cli, fingerprint, panel_cli
from fints.study.plan import make_plan

TINY = Path(__file__).parent / "tiny.py"
STUDY = runpy.run_path(str(TINY))["STUDY"]
PANELS = runpy.run_path(str(TINY.with_name("tiny_panels.py")))["STUDY"]


class Told(NamedTuple):
    """How a command ended and what it said."""

    returncode: int | str | None
    stdout: str
    stderr: str


Call = Callable[..., Told]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """A verb of a study in this process; a study started as a file is among the runs of test_run.py."""

    def in_this_process(*words: str, study: Path = TINY) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(STUDY, words, file=study)
        return Told(ended.value.code, *capsys.readouterr())

    return in_this_process


def started(*words: str) -> Told:
    """The same as a process of its own."""
    ended = subprocess.run(
        [sys.executable, str(TINY), *words], capture_output=True, text=True, timeout=300, check=False
    )
    return Told(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prices.parquet"
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(path)
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "required: {plan,run,report,rerun}"),
        (("runn",), "invalid choice: 'runn'"),
        (("plan", "--prest", "quick"), "unrecognized arguments: --prest quick"),
        (("plan", "--preset", "quik"), "unknown preset 'quik'. Did you mean 'quick'?"),
        (("run", "--workers", "two"), "argument --workers: must be a whole number from 1 to 256; got 'two'"),
        (("run", "--workers", "0"), "must be a whole number from 1 to 256"),
        (("plan", "--set", "training.steps"), "--set needs FIELD=VALUE"),
        (("plan", "--set", "training.stepz=3"), "Did you mean training.steps?"),
        (("plan", "--set", "training.steps=many"), "training.steps must be a whole number; got 'many'"),
        (("plan", "--set", "model.depth=3"), "model.depth cannot be set: it is varied by factor 'depth'"),
        (("plan", "--data", "nowhere.csv"), "nowhere.csv"),
        (("plan", "--data", "sp501-20"), "sp501-20"),
    ],
)
def test_wrong_use_ends_in_one_line_and_code_2(call: Call, words: tuple[str, ...], message: str) -> None:
    told = call(*words)
    assert told.returncode == 2
    assert told.stdout == ""
    assert told.stderr.count("\n") == 1
    assert message in told.stderr


def test_a_panel_too_short_for_the_folds_is_one_line(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    simulate(num_assets=2, num_days=40, seed=1).panel.frame.write_parquet(path)
    told = call("plan", "--data", str(path))
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "unique dates" in told.stderr


def test_help_answers_without_torch_and_shows_examples() -> None:
    told = started("run", "--help")
    assert told.returncode == 0
    assert "--tracking-uri" in told.stdout
    assert "examples:" in started("--help").stdout
    probe = (
        "import sys, runpy\n"
        f"sys.argv = ['tiny.py', '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(TINY)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'mlflow', 'optuna', 'statsmodels') if name in sys.modules])\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=300, check=True
    )
    assert loaded.stdout.splitlines()[-1] == "[]"


def test_plan_says_what_would_run_and_runs_nothing(call: Call, prices: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    told = call("plan", "--data", str(prices), "--root", str(root), "--workers", "2")
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    for word in (
        "pre_norm-depth_1",
        "parameters",
        "= 8 fits",
        "in all   16 fits",
        "power",
        "memory a fit",
        "disk",
    ):
        assert word in told.stdout
    assert str(root / "tiny" / "quick-prices-") in told.stdout.replace("\n", "")
    assert not root.exists()
    assert max(len(line) for line in told.stdout.splitlines() if str(root) not in line) <= 80


def test_a_report_of_nothing_says_what_to_run_first(call: Call, prices: Path, tmp_path: Path) -> None:
    told = call("report", "--data", str(prices), "--root", str(tmp_path))
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "run --preset quick" in told.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A git repository with a committed study."""
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copy(TINY, folder / "tiny.py")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, timeout=300)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """Commit all there is."""
    for words in (
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "A study"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=300)


def test_a_study_with_uncommitted_changes_is_not_run(
    call: Call, clone: Path, prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = clone / "tiny.py"
    study.write_text(study.read_text() + "\n# changed\n")
    monkeypatch.chdir(clone)
    told = call("run", "--data", str(prices), "--root", str(tmp_path / "root"), study=study)
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "has changes that are not committed; commit them, or use --preset smoke" in told.stderr
    assert not (tmp_path / "root").exists()


def test_code_that_affects_numbers_must_be_committed_too(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = clone / "fints"
    (package / "training").mkdir(parents=True)
    (package / "study").mkdir()
    for name in ("config.py", "training/loop.py", "study/report.py"):
        (package / name).write_text("x = 1\n")
    commit(clone)
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    (package / "study" / "report.py").write_text("x = 2\n")
    checkout.refuse_uncommitted(STUDY, clone / "tiny.py")
    (package / "training" / "loop.py").write_text("x = 2\n")
    message = r"fints/training/loop.py has changes that are not committed; commit them, or use --preset smoke"
    with pytest.raises(ValueError, match=message):
        checkout.refuse_uncommitted(STUDY, clone / "tiny.py")
    (package / "training" / "new.py").write_text("x = 2\n")
    with pytest.raises(ValueError, match=r"fints/training/loop.py \(and 1 more\) has changes"):
        checkout.refuse_uncommitted(STUDY, clone / "tiny.py")


def test_what_git_cannot_say_is_committed_is_refused_as_if_it_were_not(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "PACKAGE", clone.parent / "site-packages" / "fints")
    study, index = clone / "tiny.py", clone / ".git" / "index"
    checkout.refuse_uncommitted(STUDY, study)
    whole = index.read_bytes()
    index.write_bytes(b"junk\n")
    # The commit is still named, so the results would claim to be of it.
    assert checkout.commit_of(study)
    message = r"git cannot say whether .*tiny.py is committed: .+\. Mend .*, or use --preset smoke\."
    with pytest.raises(ValueError, match=message) as caught:
        checkout.refuse_uncommitted(STUDY, study)
    assert "\n" not in str(caught.value)
    index.write_bytes(whole)
    # As long as git takes on a large tree on a slow disk.
    monkeypatch.setattr(checkout, "PATIENCE_S", 0)
    with pytest.raises(ValueError, match="is committed: git status took over 0 s"):
        checkout.refuse_uncommitted(STUDY, study)


def test_code_in_a_clone_that_git_cannot_read_is_refused_and_code_in_none_is_not(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other" / "fints"
    package.mkdir(parents=True)
    monkeypatch.setattr(fingerprint, "PACKAGE", package)
    checkout.refuse_uncommitted(STUDY, clone / "tiny.py")
    (package.parent / ".git").mkdir()
    with pytest.raises(ValueError, match="git cannot say whether the code of fints is committed"):
        checkout.refuse_uncommitted(STUDY, clone / "tiny.py")


def test_claims_in_a_clone_whose_commit_git_cannot_name_are_refused_as_uncommitted(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "PACKAGE", clone.parent / "site-packages" / "fints")
    study = clone / "tiny.py"
    assert checkout.commit_of_claims(STUDY, study, "quick")
    (clone / ".git" / "HEAD").write_text("junk\n")
    assert checkout.commit_of(study) is None
    with pytest.raises(ValueError, match="git cannot say whether"):
        checkout.commit_of_claims(STUDY, study, "quick")
    assert checkout.commit_of_claims(STUDY, study, "smoke") is None
    assert checkout.why_no_commit(study) == "git names no commit of this clone"
    assert checkout.why_no_commit(clone.parent / "tiny.py") == "not a git checkout"


@pytest.mark.parametrize(("module", "study"), [(cli, STUDY), (panel_cli, PANELS)])
def test_a_study_that_stands_in_no_file_is_one_line(
    module: ModuleType, study: object, capsys: pytest.CaptureFixture[str]
) -> None:
    # As `python - plan < tiny.py` runs it: what is piped into the interpreter has no __file__.
    with pytest.raises(SystemExit) as ended:
        exec("main(STUDY, ['plan'])", {"main": module.main, "STUDY": study, "__name__": "__main__"})
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: a study must stand in a file")


@pytest.mark.parametrize(("device", "workers"), [("cuda", 1), ("cpu", 7)])
def test_an_accelerator_gets_one_worker_unless_more_are_asked_for(
    prices: Path, monkeypatch: pytest.MonkeyPatch, device: str, workers: int
) -> None:
    monkeypatch.setattr(fingerprint, "device_type", lambda name: device)
    monkeypatch.setattr(cli, "usable_cores", lambda: 7)
    made = make_plan(STUDY, name="tiny", docstring="", preset="quick", data=str(prices))
    assert cli._default_workers(made) == workers


def test_a_study_that_git_does_not_know_is_not_run(
    call: Call, clone: Path, prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = clone / "other.py"
    shutil.copy(TINY, study)
    monkeypatch.chdir(clone)
    told = call("run", "--data", str(prices), "--root", str(tmp_path / "root"), study=study)
    assert told.returncode == 2
    assert "not committed" in told.stderr


@pytest.mark.parametrize(
    ("file", "main", "wanted"),
    [
        ("tiny.py", panel_cli.main, "call fints.study.main(STUDY)"),
        ("tiny_panels.py", cli.main, "call fints.study.panel_main(STUDY)"),
    ],
)
def test_a_study_of_the_other_kind_is_refused_with_the_main_that_is_for_it(
    file: str, main: Callable[..., None], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).with_name(file)
    with pytest.raises(SystemExit) as ended:
        main(runpy.run_path(str(path))["STUDY"], ["plan"], file=path)
    assert ended.value.code == 2
    assert wanted in capsys.readouterr().err
