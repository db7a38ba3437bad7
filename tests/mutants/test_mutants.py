"""The planted mistakes are caught, and a patch that lost its place is not taken for a success."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
HYPER_CONNECTIONS = "fints/residual/hyper_connections.py"
START = "tests/residual/test_hyper_connections_start.py"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_third_mutant_is_killed_by_the_test_it_names(mutants, capsys):
    # All of them take minutes: `python tests/mutants/run.py` plants them.
    chosen = mutants.MUTANTS[::3]
    assert mutants.survivors(chosen) == []
    assert f"{len(chosen)}/{len(chosen)} killed" in capsys.readouterr().out


def test_every_patch_applies_and_changes_the_source(mutants, tmp_path):
    mutants.copy_of_the_package(tmp_path)
    for mutant in mutants.MUTANTS:
        path = tmp_path / mutant.file
        source = mutants.plant(tmp_path, mutant)
        assert path.read_text() != source
        if path.suffix == ".py":
            compile(path.read_text(), mutant.file, "exec")
        path.write_text(source)
        assert source == (mutants.ROOT / mutant.file).read_text()


def test_a_patch_that_lost_its_place_is_an_error(mutants, tmp_path):
    mutants.copy_of_the_package(tmp_path)
    lost = mutants.Mutant(
        mistake="lost", file=HYPER_CONNECTIONS, old="no such line", new="", test="tests/residual"
    )
    with pytest.raises(ValueError, match="no longer applies"):
        mutants.plant(tmp_path, lost)


@pytest.mark.slow
def test_a_harmless_change_is_reported_alive(mutants, capsys):
    harmless = mutants.Mutant(
        mistake="harmless",
        file=HYPER_CONNECTIONS,
        old='    """Streams mixed by learned constants.',
        new='    """Streams, mixed by learned constants.',
        test=f"{START}::test_each_sublayer_reads_its_home_stream",
    )
    assert mutants.survivors((harmless,)) == [harmless]
    assert "0/1 killed" in capsys.readouterr().out
