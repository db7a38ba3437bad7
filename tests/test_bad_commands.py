"""Two hundred things that cannot be done: one clear line each, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from fints.cli import main
from fints.data import simulate
from fints.study import cli, panel_cli
from fints.study.shared_open import open_shared

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "tests" / "study" / "tiny.py"
CAUSES = ROOT / "studies" / "collapse_or_vanishing.py"
LONGEST = 300
# What is known is listed where it was not hit, however much it is.
LISTED = re.compile(r"(Known( \w+)?:|Choose one of|Datasets|Studies there)[^.]*\.")
Call = Callable[[list[str]], int | str | None]
Refused = Callable[[Call, str], str]


class Told(NamedTuple):
    """How a command ended and what it said."""

    code: int | str | None
    out: str
    err: str


# What each says, in part, stands behind it: a line that is clear to nobody in particular proves nothing.
FINTS = r"""
nope                                                    | No such command 'nope'
--nope                                                  | No such option: --nope
--verson                                                | Did you mean --version?
-x                                                      | No such option: -x
docter                                                  | Did you mean 'doctor'?
''                                                      | No such command ''
données                                                 | No such command 'données'
--help=yes                                              | does not take a value
--version=3                                             | does not take a value
doctor now                                              | unexpected extra argument
doctor --jsn                                            | --json
doctor --json=yes                                       | does not take a value
data                                                    | Missing command
data lst                                                | Did you mean 'list'?
data --json                                             | No such option: --json
data list sp500-20                                      | unexpected extra argument
data list --jsn                                         | --json
data show                                               | Missing argument
data show sp500-21                                      | Did you mean 'sp500-20'?
data show ''                                            | no dataset
data show ../sp500-20                                   | no dataset
data show /etc/passwd                                   | no dataset
data show 日本株                                         | no dataset
data show sp500-20 more                                 | unexpected extra argument
data delete                                             | Missing argument
data delete sp500-20 --yes                              | comes with fints
data delete absent --yes                                | no dataset of yours
data delete ../datasets --yes                           | no dataset of yours
data delete {here} --yes                                | no dataset of yours
data delete . --yes                                     | no dataset of yours
data delete linked --yes                                | is a link
data delete mine                                        | --yes
data check                                              | Missing argument
data check absent.csv                                   | absent.csv
data check folder                                       | folder
data check .                                            | 
data check empty.csv                                    | empty.csv
data check binary.csv                                   | binary.csv
data check binary.parquet                               | binary.parquet
data check binary.xlsx                                  | binary.xlsx
data check notes.docx                                   | notes.docx
data check prices                                       | prices
data check dangling.csv                                 | dangling.csv
data check unreadable.csv                               | unreadable.csv
data check prices.csv --layout wde                      | wide
data check prices.csv --layout                          | requires an argument
data check prices.csv --price clse                      | clse
data check prices.csv --price ''                        | 
data check prices.csv --sheet Close                     | sheet
data check prices.csv --block 2                         | block
data check prices.csv --returns maybe                   | simple
data check prices.csv --drop volume                     | volume
data check prices.csv --date-order year                 | day
data check prices.csv --century 19                      | century
data check prices.csv --century -5                      | century
data check prices.csv --century many                    | century
data check prices.csv --century 99999999999999999999    | century
data check prices.csv --time-zone Mars/Olympus          | Mars/Olympus
data check prices.csv --duplicates both                 | first
data check prices.csv --percent nope                    | nope
data check prices.csv --factor VOD                      | VOD
data check prices.csv --factor VOD=x@2001-02-03         | VOD
data check prices.csv --factor VOD=2@2001-02-31         | 2001-02-31
data check prices.csv --factor VOD=2@2001-02-09..2001-02-03 | 2001
data check prices.csv --factor VOD=0@2001-02-03         | 0
data check prices.csv --factor VOD=nan@2001-02-03       | nan
data check prices.csv --factor VOD=inf@2001-02-03       | inf
data check prices.csv --drop-stale 0                    | stale
data check prices.csv --drop-stale -3                   | stale
data check prices.csv --drop-stale few                  | few
data check prices.csv --total-loss 2                    | loss
data check prices.csv --total-loss nan                  | loss
data check prices.csv --total-loss -1                   | loss
data check prices.csv --missing-delisting nan           | delisting
data check prices.csv --missing-delisting -7            | delisting
data check prices.csv --figure health.bmp               | .png
data check prices.csv --figure absent/health.png        | absent
data check prices.csv --figure folder                   | folder
data check prices.csv --nope 3                          | No such option
data check twice.csv                                    | twice.csv
data check negative.csv                                 | negative.csv
data check letters.csv                                  | letters.csv
data import prices.csv                                  | --as
data import prices.csv --as ''                          | name
data import prices.csv --as ../up                       | name
data import prices.csv --as a/b                         | name
data import prices.csv --as {here}                      | name
data import prices.csv --as .hidden                     | name
data import prices.csv --as sp500-20                    | bundled
data import prices.csv --as mine                        | --replace
data import prices.csv --as linked --replace            | link
data import absent.csv --as new                         | absent.csv
data import negative.csv --as new                       | negative.csv
data simulate                                           | --as
data simulate --as sp500-20                             | bundled
data simulate --as ../up                                | name
data simulate --as mine                                 | mine
data simulate --as new --num-assets 0                   | at least 1 asset
data simulate --as new --num-assets -4                  | at least 1 asset
data simulate --as new --num-assets two                 | two
data simulate --as new --num-days 1                     | 2 days
data simulate --as new --num-days 99999999              | fit into memory
data simulate --as new --num-assets 99999999            | fit into memory
data simulate --as new --r2 1                           | r2
data simulate --as new --r2 -0.1                        | r2
data simulate --as new --r2 nan                         | r2
data simulate --as new --r2 inf                         | r2
data simulate --as new --signal liner                   | linear
data simulate --as new --noise garsh                    | garch
data simulate --as new --drift fast                     | slow
data simulate --as new --depth-demand 0                 | depth_demand
data simulate --as new --depth-demand 9                 | depth_demand
data simulate --as new --degrees 1                      | degrees
data simulate --as new --degrees nan                    | degrees
data simulate --as new --leverage 2                     | leverage
data simulate --as new --common-share 1.5               | common_share
data simulate --as new --regime-ratio -1                | regime_ratio
data simulate --as new --jump-share nan                 | jump_share
data simulate --as new --jumps-a-year -1                | jumps_a_year
data simulate --as new --volatility-daily 0             | volatility_daily
data simulate --as new --vol-of-vol -1                  | vol_of_vol
data simulate --as new --shock-factor 0                 | shock_factor
data simulate --as new --break-at 2                     | break_at
data simulate --as new --seed -1                        | seed
data simulate --as new --on absent                      | absent
data simulate --as new --on sp500-20 --noise garch      | --noise
schemes lst                                             | Did you mean 'list'?
schemes list pre_norm                                   | unexpected extra argument
schemes show                                            | name a scheme
schemes show pre_nrm                                    | pre_norm
schemes show pre_norm --depth 0                         | depth
schemes show pre_norm --depth 1000                      | depth
schemes show pre_norm --depth deep                      | deep
schemes show pre_norm --width 0                         | width
schemes show pre_norm --width 99999999                  | width
schemes show pre_norm --width 16384 --depth 200         | draw a smaller one
schemes show pre_norm --option num_streams              | NAME=VALUE
schemes show pre_norm --option num_streams=4            | num_streams
schemes show static_hyper_connections --option num_streams=0 | num_streams
schemes show static_hyper_connections --option num_streams=many | num_streams
schemes show static_hyper_connections --option num_streams=nan | num_streams
schemes show static_hyper_connections --option num_streams=2.5 | num_streams
schemes show pre_norm --random -1                       | greater than or equal to 0
schemes show pre_norm --random 99999999999999999999999  | less than or equal to
schemes show pre_norm --out picture.bmp                 | .png
schemes show pre_norm --out absent/picture.png          | absent
schemes show pre_norm --out folder.png                  | folder.png
schemes show pre_norm --data sp500-20                   | --model
schemes show --model absent                             | absent
schemes show --model folder                             | folder
schemes show --model prices.csv                         | prices.csv
schemes convert                                         | Missing
schemes convert folder --to pre_norm                    | --out
schemes convert folder --to pre_norm --out new          | folder
schemes convert absent --to pre_norm --out new          | absent
schemes convert folder --to pre_norm --out folder       | another folder
evaluate                                                | Missing argument
evaluate absent.csv                                     | absent.csv
evaluate folder                                         | folder
evaluate empty.csv                                      | empty
evaluate binary.parquet                                 | binary.parquet
evaluate binary.csv                                     | binary.csv
evaluate unreadable.csv                                 | unreadable.csv
evaluate notes.docx                                     | notes.docx
evaluate prices.csv                                     | forecast
evaluate forecasts.csv                                  | outcome
evaluate forecasts.csv --panel absent                   | absent
evaluate forecasts.csv --panel binary.csv               | binary.csv
evaluate forecasts.csv --panel prices.csv --horizon 0   | horizon
evaluate forecasts.csv --panel prices.csv --horizon -1  | horizon
evaluate forecasts.csv --panel prices.csv --horizon two | two
evaluate forecasts.csv --panel prices.csv --horizon 99999999 | no row has both
evaluate forecasts.csv --panel prices.csv --date day    | day
evaluate forecasts.csv --panel prices.csv --forecast fc | fc
evaluate forecasts.csv --panel prices.csv --returns lag | log
evaluate forecasts.csv --panel prices.csv --execution now | next_open
evaluate forecasts.csv --panel prices.csv --execution next_open | open
evaluate forecasts.csv --panel prices.csv --cost-bps -1 | cost
evaluate forecasts.csv --panel prices.csv --cost-bps nan | cost
evaluate forecasts.csv --panel prices.csv --cost-bps inf | cost
evaluate forecasts.csv --panel prices.csv --cost-bps x  | x
evaluate forecasts.csv --panel prices.csv --trials 0    | trials
evaluate forecasts.csv --panel prices.csv --trials -9   | trials
evaluate forecasts.csv --panel prices.csv --figure judged.bmp | .png
evaluate forecasts.csv --panel prices.csv --figure absent/judged.png | absent
evaluate words.csv --panel prices.csv                   | forecast
evaluate late.csv --panel prices.csv                    | 
ui                                                      | no MLflow store
ui --root absent                                        | absent
ui --root prices.csv                                    | prices.csv
ui --root broken                                        | not an MLflow store
ui --port five                                          | five
ui --port 0                                             | greater than or equal to 1; got '0'
ui --port 70000                                         | 70000
server --port -1                                        | -1
server --folder prices.csv                              | prices.csv
server --host not.a.host.anywhere                       | not.a.host.anywhere
server --store mysql                                    | mysql
worker                                                  | --storage
worker --storage ''                                     | --storage
worker --storage nowhere                                | --storage
worker --storage mysql://u:secret@h/d                   | postgresql+psycopg
worker --storage postgresql://u:secret@h/d              | postgresql+psycopg
worker --storage sqlite:///absent/a.db                  | absent
worker --storage sqlite:///binary.csv                   | binary.csv
worker --storage sqlite:///new.db --workers 0           | greater than or equal to 1; got '0'
worker --storage sqlite:///new.db --workers many        | many
worker --storage sqlite:///shared.db --study absent     | absent
worker --storage sqlite:///shared.db --tracking-uri ftp://x | ftp://x
study                                                   | Missing command
study stats                                             | status
study status --storage nowhere                          | --storage
study status --storage sqlite:///shared.db --study absent | absent
study report --storage sqlite:///shared.db              | none
study move absent --storage sqlite:///shared.db         | absent
study move folder --storage sqlite:///shared.db         | study.json
study move prices.csv --storage sqlite:///shared.db     | prices.csv
study list extra                                        | unexpected extra argument
study list --root prices.csv                            | prices.csv
study disk absent                                       | no study
study disk ../..                                        | no study
study delete                                            | Missing argument
study delete absent --yes                               | no study
study delete ../.. --yes                                | no study
study delete {here} --yes                               | no study
study delete tiny/../tiny --yes                         | no study
study delete tiny/absent --yes                          | no study
study delete tiny                                       | --yes
study delete escaped/smoke --yes                        | no study
"""


STUDY = r"""
                                                        | required: {plan,run,report,rerun}
runn                                                    | invalid choice: 'runn'
--preset quick                                          | quick
plan run                                                | unrecognized arguments: run
plan --prest quick                                      | --prest
plan --preset                                           | expected one argument
plan --preset quik                                      | Did you mean 'quick'?
plan --preset ''                                        | unknown preset
plan --preset ../quick                                  | unknown preset
plan --data nowhere                                     | nowhere
plan --data nowhere.csv                                 | nowhere.csv
plan --data sp501-20                                    | sp500-20
plan --data ''                                          | must not be empty
plan --data folder                                      | folder
plan --data .                                           | 
plan --data binary.csv                                  | binary.csv
plan --data binary.parquet                              | binary.parquet
plan --data empty.csv                                   | empty.csv
plan --data negative.csv                                | negative.csv
plan --data short.csv                                   | dates
plan --data unreadable.csv                              | unreadable.csv
plan --data notes.docx                                  | notes.docx
plan --workers 0                                        | from 1 to 256
plan --workers -1                                       | from 1 to 256
plan --workers 257                                      | from 1 to 256
plan --workers two                                      | 'two'
plan --workers 2.5                                      | '2.5'
plan --workers ²                                        | from 1 to 256; got '²'
plan --workers nan                                      | 'nan'
plan --plain                                            | --plain
plan --json --check                                     | one of them
plan --set                                              | expected one argument
plan --set training.steps                               | --set needs FIELD=VALUE
plan --set =5                                           | --set needs FIELD=VALUE
plan --set training.steps=                              | training.steps must be a whole number
plan --set steps=5                                      | unknown field steps
plan --set training.stepz=5                             | Did you mean training.steps?
plan --set trainin.steps=5                              | unknown field trainin
plan --set training=5                                   | training must be
plan --set training.steps.more=5                        | training.steps has no fields
plan --set .=5                                          | unknown field
plan --set model..width=5                               | unknown field
plan --set training.steps=many                          | a whole number; got 'many'
plan --set training.steps=2.5                           | a whole number; got 2.5
plan --set training.steps=true                          | a whole number; got True
plan --set training.steps=null                          | a whole number; got None
plan --set training.steps=0                             | at least 1
plan --set training.steps=-5                            | at least 1
plan --set training.steps=[5]                           | a whole number; got [5]
plan --set 'training.steps={{"a": 1}}'                  | a whole number
plan --set training.steps=1e400                         | a whole number
plan --set training.warmup_steps=100                    | below training.steps
plan --set training.batch_size=0                        | at least 1
plan --set training.clip_norm=NaN                       | a finite number
plan --set training.clip_norm=Infinity                  | a finite number
plan --set training.clip_norm=-Infinity                 | a finite number
plan --set training.clip_norm=0                         | above 0
plan --set training.loss=mae                            | mse
plan --set training.optimizer=adam                      | adamw
plan --set training.device=gpu                          | device
plan --set training.betas=[0.9]                         | two numbers
plan --set training.betas=0.9                           | a list
plan --set training.interventions=5                     | a table
plan --set training.interventions.gradient=1            | unknown intervention 'gradient'
plan --set training.interventions.token_pull=1          | needs a table with a dose
plan --set model.depths=3                               | Did you mean model.depth?
plan --set model.width=1000000000                       | choose at most
plan --set training.learning_rate=0.1                   | tuning space
plan --set model.depth=3                                | factor 'depth'
plan --set model.residual=deep_norm                     | factor 'residual'
plan --set model.width=7                                | divisor of model.width
plan --set model.num_heads=3                            | divisor of model.width
plan --set model.width=-8                               | at least 1
plan --set model.width=10000000000000000000000          | model.width
plan --set model.dropout=1                              | [0, 1)
plan --set model.norm=batch_norm                        | layer_norm
plan --set model.head=gaussian                          | nll
plan --set model.residual_options=4                     | a table
plan --set model.residual_options.num_streams=4         | num_streams
plan --set data.features=a                              | a list
plan --set data.features=[]                             | at least one
plan --set 'data.features=["a","a"]'                    | once
plan --set 'data.features=["nope"]'                     | nope
plan --set 'data.features=[1]'                          | a text
plan --set 'data.features=["日本"]'                      | 日本
plan --set data.target=returns                          | log_return
plan --set data.horizon=0                               | at least 1
plan --set data.horizon=5                               | purge
plan --set data.horizon=99999999999                     | purge
plan --set data.context=100000                          | context
plan --set data.context=0                               | at least 1
plan --set data.min_valid=0                             | (0, 1]
plan --set data.clip=-1                                 | above 0
run --workers 0                                         | shared --storage
run --replace                                           | shared --storage
run --workers two                                       | 'two'
run --heartbeat 0                                       | from 0.1 to 3600
run --vectorise 0                                       | --vectorise
run --vectorise many                                    | 'many'
run --vectorise -4                                      | --vectorise
run --launcher pbs                                      | invalid choice: 'pbs'
run --preset smoke --launcher ray                       | needs --storage
run --preset smoke --launcher-option partition=long     | needs --launcher
run --preset smoke --launcher slurm --storage sqlite:///shared.db | needs --workers
rerun                                                   | KEY
rerun 0123456789abcdef --preset smoke                   | no fit of this plan
rerun ../../etc --preset smoke                          | no fit of this plan
rerun 0123456789abcdef --out ''                         | must not be empty
run --heartbeat nan                                     | from 0.1 to 3600
run --heartbeat soon                                    | 'soon'
run --check                                             | --check
run --json                                              | --json
run --preset smoke --root prices.csv                    | prices.csv
run --preset smoke --root 'a?b'                         | ?
run --preset smoke --tracking-uri nonsense://x          | --tracking-uri
run --preset smoke --tracking-uri http://127.0.0.1:9    | --tracking-uri
run --preset smoke --tracking-uri sqlite:///absent/x.db | --tracking-uri
run --preset smoke --tracking-uri mysql://u:secret@127.0.0.1:9/d | --tracking-uri
run --preset smoke --storage nowhere                    | --storage
run --preset smoke --storage mysql://u:secret@h/d       | postgresql+psycopg
run --preset smoke --storage postgresql+psycopg://u:secret@127.0.0.1:9/d | --storage
run --preset smoke --storage sqlite:///binary.csv       | binary.csv
report                                                  | first:
report --preset smoke --root absent                     | first:
report --preset smoke --root prices.csv                 | first:
report --workers 2                                      | --workers
report --storage nowhere                                | --storage
report --storage sqlite:///shared.db                    | tiny
"""

PANELS = r"""
                                                        | required: {plan,run,report,rerun}
plna                                                    | invalid choice
plan --data sp500-20                                    | --data
plan --preset hugee                                     | preset
plan --workers 0                                        | from 1 to 256
plan --set training.steps=0                             | at least 1
plan --set simulation.r2=2                              | simulation
plan --set model.depth=3                                | model.depth
plan --json --anew more                                 | unrecognized arguments
run --storage sqlite:///shared.db                       | --storage
run --preset smoke --root prices.csv                    | prices.csv
rerun                                                   | KEY
rerun 0123456789abcdef --preset smoke                   | no fit of this plan
rerun ../../etc --preset smoke                          | no fit of this plan
rerun 0123456789abcdef --out ''                         | must not be empty
rerun 0123456789abcdef --anew                           | unrecognized arguments
run --preset smoke --tracking-uri nonsense://x          | --tracking-uri
run --preset smoke --tracking-uri http://127.0.0.1:9    | --tracking-uri
run --preset smoke --tracking-uri mysql://u:secret@127.0.0.1:9/d | --tracking-uri
report --preset smoke --root absent                     | first:
report --preset smoke --publish --set training.clip_norm=7 | leave out --set
report --preset smoke --root prices.csv                 | first:
"""

NOBODY = "@127.0.0.1:9/"


def cases(table: str) -> list[object]:
    """Return words and what is to be said of them, from the lines of a table.

    A server that nobody runs is waited for as one that restarts is: half a minute.
    """
    rows = [[part.strip() for part in line.rpartition("|")] for line in table.splitlines() if line.strip()]
    return [
        pytest.param(
            words,
            said,
            id=words or "nothing",
            marks=[pytest.mark.slow] if NOBODY in words else [],
        )
        for words, _, said in rows
    ]


def furnish(here: Path, home: Path) -> None:
    """Make a folder with all that a hand may reach for by mistake, and a home with a study and a dataset."""
    (here / "folder").mkdir(parents=True)
    (here / "folder.png").mkdir()
    (here / "broken").mkdir()
    (here / "broken" / "mlflow.db").write_bytes(b"this is no database" * 100)
    (here / "empty.csv").touch()
    for name in ("binary.csv", "binary.parquet", "binary.xlsx", "notes.docx"):
        (here / name).write_bytes(bytes(range(256)) * 8)
    (here / "prices").write_text("no ending\n")
    (here / "dangling.csv").symlink_to(here / "absent-target.csv")
    # What cannot be read even by a superuser.
    (here / "unreadable.csv").symlink_to("/proc/self/mem")
    days = [f"2024-01-{day:02}" for day in range(2, 30)]
    rows = [f"{day},{asset},{10 + number}" for number, day in enumerate(days) for asset in ("A", "B")]
    tables = {
        "prices": ("date,asset,close", rows),
        "short": ("date,asset,close", rows[:8]),
        "twice": ("date,asset,close", [*rows, rows[0]]),
        "negative": ("date,asset,close", ["2024-01-02,A,-1"]),
        "letters": ("date,asset,close", ["2024-01-02,A,ten"]),
        "forecasts": (
            "date,asset,forecast",
            [f"{row[:12]},0.{number}" for number, row in enumerate(rows, 1)],
        ),
        "words": ("date,asset,forecast", [f"{row[:12]},up" for row in rows]),
        "late": ("date,asset,forecast", ["2031-01-02,A,0.1"]),
    }
    for name, (header, lines) in tables.items():
        (here / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    mine = home / "datasets" / "mine"
    mine.mkdir(parents=True)
    simulate(num_assets=3, num_days=160, seed=1).panel.frame.write_parquet(mine / "panel.parquet")
    open_shared(f"sqlite:///{here / 'shared.db'}").close()
    (mine.parent / "linked").symlink_to(mine)
    study = home / "tiny" / "smoke-mine"
    study.mkdir(parents=True)
    (study / "study.json").write_text("{}")
    outside = here.parent / "outside" / "smoke"
    outside.mkdir(parents=True)
    (outside / "study.json").write_text("{}")
    (home / "escaped").symlink_to(outside.parent)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Made once: nothing that is refused may change it."""
    top = tmp_path_factory.mktemp("mistakes")
    furnish(top / "here", top / "home")
    return top / "here", top / "home"


@pytest.fixture
def refused(
    furnished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Run words, hold them to the rule, and return the one line that they said."""
    here, home = furnished
    monkeypatch.chdir(here)
    monkeypatch.setenv("FINTS_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FINTS_STORAGE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)

    def run(call: Call, text: str) -> str:
        words = shlex.split(text.format(here=here))
        before = everything(here, home)
        capsys.readouterr()
        code = call(words)
        told = Told(code, *capsys.readouterr())
        assert (told.code, told.out) == (2, ""), told
        assert re.fullmatch(r"error: [^\n]+\n", told.err), told.err
        assert len(LISTED.sub("", told.err)) <= LONGEST, (len(told.err), told.err)
        assert "secret" not in told.err
        assert everything(here, home) == before
        return told.err

    return run


def everything(*roots: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for root in roots for path in root.rglob("*"))


def of_a_study(module: object, file: Path, **changes: object) -> Call:
    study = replace(runpy.run_path(str(file))["STUDY"], **changes)

    def call(words: list[str]) -> int | str | None:
        # A run asks for SIGTERM, which is the tests' own again afterwards.
        usual = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                module.main(study, words, file=file)  # type: ignore[attr-defined]
        finally:
            signal.signal(signal.SIGTERM, usual)
        return ended.value.code

    return call


@pytest.fixture(scope="module")
def tiny() -> Call:
    return of_a_study(cli, TINY, dataset="mine")


@pytest.fixture(scope="module")
def causes() -> Call:
    return of_a_study(panel_cli, CAUSES)


def test_there_are_more_than_a_hundred() -> None:
    tables = [cases(table) for table in (FINTS, STUDY, PANELS)]
    assert sum(map(len, tables)) > 300
    assert min(map(len, tables)) > 10


@pytest.mark.parametrize(("words", "said"), cases(FINTS))
def test_what_fints_cannot_do_is_one_line_and_code_2(refused: Refused, words: str, said: str) -> None:
    assert said in refused(main, words)


@pytest.mark.parametrize(("words", "said"), cases(STUDY))
def test_what_a_study_cannot_do_is_one_line_and_code_2(
    refused: Refused, tiny: Call, words: str, said: str
) -> None:
    assert said in refused(tiny, words)


@pytest.mark.parametrize(("words", "said"), cases(PANELS))
def test_what_a_study_of_panels_cannot_do_is_one_line_and_code_2(
    refused, causes, words: str, said: str
) -> None:
    assert said in refused(causes, words)


@pytest.mark.parametrize(
    "words",
    [
        "data show mine",
        "data import prices.csv --as new",
        "data delete mine --yes",
        "study list",
        "ui",
    ],
)
def test_a_home_that_is_a_file_is_refused(
    refused: Refused, furnished: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("FINTS_HOME", str(furnished[0] / "prices.csv"))
    assert "prices.csv" in refused(main, words)


MALFORMED = {
    "an unknown field": ('"training.steps"', '"training.stepz"', "Did you mean training.steps?"),
    "a value that cannot be": ("batch_size=16", "batch_size=0", "batch_size = 0 cannot be used"),
    "an argument that there is not": ("title=", "titel=", "unexpected keyword argument 'titel'"),
    "a level that is not there": ('"post_norm"), against', '"past_norm"), against', "no level 'past_norm'"),
    "seeds that tuning has": ("seeds=(10,)", "seeds=(1000,)", "are tuning seeds too"),
}


@pytest.mark.parametrize(("right", "wrong", "said"), MALFORMED.values(), ids=list(MALFORMED))
def test_a_study_file_that_declares_nonsense_is_one_line(
    tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    text = TINY.read_text(encoding="utf-8")
    assert right in text
    file = tmp_path / "mine.py"
    file.write_text(text.replace(right, wrong), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, file, "plan"], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert re.fullmatch(rf"error: {re.escape(str(file))}, line \d+: [^\n]+\n", ended.stderr), ended.stderr
    assert said in ended.stderr


def test_a_bug_in_a_study_file_keeps_its_traceback(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import fints.study\n\n\ndef f():\n    raise ValueError('a bug')\n\n\nf()\n", encoding="utf-8"
    )
    ended = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [["data", "shw"], ["worker", "--storage", "mysql://u:secret@h/d"], ["schemes", "show", "pre_nrm"]],
)
def test_a_process_ends_as_the_function_does(words: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fints", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", ended.stderr), ended.stderr
    assert "secret" not in ended.stderr


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m fints schemes | head -n 1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.stdout, ended.stderr) == ("pre_norm\n", "")
