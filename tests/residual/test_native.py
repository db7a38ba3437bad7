"""The kernels are built once, by the machine's compiler, or refused with what to do."""

from __future__ import annotations

import subprocess

import pytest

from fints.residual import native


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache folder, and no library loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.kernels.cache_clear()
    yield tmp_path / "fints"
    native.kernels.cache_clear()


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch, fresh):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(fresh))
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler.*apt-get install g\+\+.*compile = false"):
        native.kernels()


def test_a_compiler_that_is_named_must_exist(monkeypatch, fresh):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"CXX = 'no-such-compiler' is none"):
        native.kernels()


def test_a_source_that_does_not_compile_is_refused_and_leaves_nothing(monkeypatch, fresh, tmp_path):
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is no C++")
    monkeypatch.setattr(native, "SOURCES", (broken,))
    with pytest.raises(ValueError, match=r"(?s)ended with code .*Name another compiler"):
        native.kernels()
    assert list(fresh.iterdir()) == []


def test_a_library_is_built_once(monkeypatch, fresh, tmp_path):
    """A second process, here a second load, finds the first one's."""
    small = tmp_path / "small.cpp"
    small.write_text("\n".join(f'extern "C" void {name}() {{}}' for name in native._SIGNATURES))
    monkeypatch.setattr(native, "SOURCES", (small,))
    builds = []
    run = subprocess.run

    def watched(command, **options):
        if "-shared" in command:
            builds.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    for _ in range(2):
        native.kernels()
        native.kernels.cache_clear()
    assert len(builds) == 1
    assert sorted(path.suffix for path in fresh.iterdir()) == [".o", ".so"]


def test_a_change_of_one_source_compiles_that_one_alone(monkeypatch, fresh, tmp_path):
    sources = [tmp_path / "all.cpp", tmp_path / "other.cpp"]
    sources[0].write_text("\n".join(f'extern "C" void {name}() {{}}' for name in native._SIGNATURES))
    sources[1].write_text("int one = 1;")
    monkeypatch.setattr(native, "SOURCES", tuple(sources))
    native.kernels()
    compiled = []
    run = subprocess.run

    def watched(command, **options):
        compiled.extend(part for part in command if part.endswith(".cpp"))
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    sources[1].write_text("int two = 2;")
    native.kernels.cache_clear()
    native.kernels()
    assert compiled == [str(sources[1])]
