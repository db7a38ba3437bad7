"""fints schemes: a picture of what a scheme does to depth, and a saved forecaster under another one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import polars as pl
import pytest
import torch

from fints import load
from fints.cli import main
from fints.config import Experiment, override
from fints.data import load as load_data
from fints.model import build
from fints.saved import read_folder, write_folder

FIXTURE = Path(__file__).parent / "fixtures" / "forecaster_v1" / "model"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in this process and in an empty folder; return its code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main(["schemes", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved forecaster of Pre-Norm with weights away from their start."""
    spec, _ = read_folder(FIXTURE)
    experiment = override(
        Experiment.from_dict(spec["experiment"]),
        {"model.residual": "pre_norm", "model.residual_options": {}, "model.depth": 2},
    )
    model = build(
        experiment.model,
        num_features=len(experiment.data.features),
        context=experiment.data.context,
        seed=3,
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    given = {name: spec[name] for name in ("seed", "scaler", "target_std", "model_as_of")}
    path = tmp_path_factory.mktemp("saved") / "pre"
    return write_folder(path, {"experiment": experiment.to_dict(), **given}, model.state_dict())


def test_a_fresh_scheme_has_a_picture_and_says_how_far_back_it_reads(run: Run, tmp_path: Path) -> None:
    code, out, err = run("show", "pre_norm", "--depth", "3")
    assert (code, err) == (0, "")
    assert "Every weight is 1" in out
    assert "3 blocks, fresh" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    pixels = matplotlib.image.imread(tmp_path / "pre_norm.png")[..., :3]
    # One colour for all weights, beside the colour bar's: half a matrix of it.
    dark = np.isclose(pixels, matplotlib.colormaps["RdBu"](1.0)[:3], atol=0.02).all(-1)
    assert 0.15 < dark.mean() < 0.4


def test_the_same_command_gives_the_same_picture_and_json_holds_the_matrix(run: Run, tmp_path: Path) -> None:
    words = ("show", "static_hyper_connections", "--depth", "2", "--option", "num_streams=3", "--random", "1")
    first = json.loads(run(*words, "-o", "a.png", "--json")[1])
    second = json.loads(run(*words, "-o", "b.png", "--json")[1])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert first | {"picture": ""} == second | {"picture": ""}
    assert first["options"]["num_streams"] == 3
    assert first["extra_parameters"] == 4 * 15
    matrix = np.array(first["matrix"])
    assert matrix.shape == (5, 5)
    assert (np.triu(matrix, 1) == 0).all()
    assert len(np.unique(matrix[np.tril_indices(5)])) > 10
    assert [row["reader"] for row in first["readers"]] == [0, 1, 2, 3, 4]
    other = json.loads(run(*words[:-1], "2", "-o", "c.png", "--json")[1])
    assert not np.allclose(other["matrix"], matrix)


def test_a_trained_network_is_shown_on_random_inputs_or_on_data(run: Run, tmp_path: Path) -> None:
    random = json.loads(run("show", "--model", FIXTURE, "--json")[1])
    real = json.loads(run("show", "--model", FIXTURE, "--data", "sp500-20", "--json")[1])
    assert random["scheme"] == real["scheme"] == "dynamic_hyper_connections"
    assert "trained until 2007-12-31" in real["what"]
    assert random["matrix"] != real["matrix"]
    assert (tmp_path / "model.png").is_file()


def test_a_converted_forecaster_forecasts_the_same(run: Run, saved: Path, tmp_path: Path) -> None:
    words = ("convert", saved, "--to", "dynamic_hyper_connections", "--option", "num_streams=2")
    code, out, err = run(*words, "--out", "hc")
    assert (code, err) == (0, "")
    assert "no state of the optimiser is carried" in out
    told = json.loads(run(*words, "--out", "hc", "--json")[1])
    assert told["largest_difference"] < 1e-5
    assert told["parameters_after"] > told["parameters_before"]
    panel = load_data("sp500-20")[:"2012-06-30"]
    tables = [load(path).predict(panel, start="2012-05-01") for path in (saved, tmp_path / "hc")]
    assert tables[0].height > 500
    assert tables[0].drop("forecast").equals(tables[1].drop("forecast"))
    difference = (tables[0]["forecast"] - tables[1]["forecast"]).abs().max()
    assert difference <= 1e-5 * tables[0]["forecast"].abs().max()
    assert load(tmp_path / "hc").experiment_.model.residual_options == {"num_streams": 2}
    assert isinstance(tables[1], pl.DataFrame)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show"], "name a scheme"),
        (["show", "prenorm"], "Did you mean 'pre_norm'"),
        (["show", "pre_norm", "--option", "streams"], "NAME=VALUE; got 'streams'"),
        (["show", "pre_norm", "--option", "streams=2"], "pre_norm has no options"),
        (["show", "pre_norm", "-o", "a.txt"], "end in .png, .svg or .pdf"),
        (["show", "pre_norm", "-o", "absent/a.png"], "does not exist"),
        (["show", "pre_norm", "--data", "sp500-20"], "--data is for a saved forecaster"),
        (["show", "pre_norm", "--model", FIXTURE], "leave the name out"),
        (["show", "--model", FIXTURE, "--random", "1"], "for a fresh network"),
        (["show", "--model", "absent"], "not a saved forecaster"),
        (["convert", FIXTURE, "--to", "post_norm", "--out", "new"], "no exact conversion"),
        (["convert", FIXTURE, "--to", "pre_norm", "--out", FIXTURE], "give another folder"),
        (["convert", FIXTURE, "--to", "prenorm", "--out", "new"], "Did you mean 'pre_norm'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_refused_in_one_line_and_leaves_nothing(
    run: Run, tmp_path: Path, words: list[str | Path], said: str
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert said in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "equal"),
    [
        (("gated_streams",), True),
        (("gated_streams", "--option", "variant=lerp_write"), False),
        (("attention_residuals", "--option", "window=1"), False),
        (("manifold_hyper_connections", "--option", "init=mhc_lite"), False),
        (("skip_init", "--option", "initial_value=1"), True),
        (("window_rescaled_pre_norm", "--option", "over=window"), False),
    ],
)
def test_whether_it_starts_as_pre_norm_is_said_of_the_options_given(
    run: Run, words: tuple[str, ...], equal: bool
) -> None:
    code, out, _ = run("show", *words, "--depth", "2", "--width", "8", "--json")
    assert code == 0
    assert json.loads(out)["equals_pre_norm_at_start"] is equal


def test_a_scheme_that_measures_data_is_shown_as_a_fit_begins(run: Run) -> None:
    # Without its measured skips Admin is Post-Norm, bit for bit.
    admin, post = (json.loads(run("show", name, "--json")[1])["matrix"] for name in ("admin", "post_norm"))
    assert admin[-1] != post[-1]


def test_segments_are_told_in_words(run: Run) -> None:
    segments = 'segments=[["pre_norm",1],["gated_streams",1,{"num_streams":2}]]'
    out = run("show", "by_depth", "--depth", "2", "--option", segments)[1]
    assert "segments pre_norm 1, gated_streams 1 (num_streams 2)" in out
