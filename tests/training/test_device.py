from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fints.training import free_bytes, resolve_device
from fints.training.device import _control_group, is_out_of_memory

GIB = 2**30


def test_auto_finds_a_device_and_cpu_is_always_there():
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cuda:", "cpu:1", "mps:0", "CUDA"])
def test_an_unknown_device_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"is unknown: choose auto, cpu, cuda, .* or mps"):
        resolve_device(name)


def test_an_absent_device_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match=r"'cuda' is not available: .* without CUDA; install a CUDA build"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ValueError, match="check the driver with nvidia-smi, or choose auto or cpu"):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs Apple silicon; choose auto or cpu"):
        resolve_device("mps")


def test_a_cuda_index_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="this machine has cuda:0 to cuda:1"):
        resolve_device("cuda:2")


def test_the_cpu_has_a_plausible_amount_free():
    free = free_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50


def _group(folder: Path, **files: int | str) -> None:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_the_tightest_control_group_counts_and_its_file_cache_is_free(tmp_path):
    root, process = tmp_path / "cgroup", tmp_path / "self"
    process.write_text("0::/service/job\n")
    _group(root / "service", memory__max=4 * GIB, memory__current=3 * GIB, memory__stat="inactive_file 0")
    _group(
        root / "service" / "job",
        memory__max="max",
        memory__current=GIB,
        memory__stat="inactive_file 0",
    )
    assert _control_group(root, process) == GIB
    (root / "service" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert _control_group(root, process) == 2 * GIB


def test_control_groups_of_version_one_are_read_too(tmp_path):
    root, process = tmp_path / "cgroup", tmp_path / "self"
    process.write_text("5:cpu:/x\n4:memory:/docker/abc\n")
    _group(
        root / "memory",
        memory__limit_in_bytes=2 * GIB,
        memory__usage_in_bytes=GIB,
        memory__stat=f"inactive_file 1\ntotal_inactive_file {GIB // 2}",
    )
    assert _control_group(root, process) == GIB + GIB // 2


def test_without_a_limit_no_control_group_speaks(tmp_path):
    process = tmp_path / "self"
    process.write_text("0::/\n")
    assert _control_group(tmp_path / "none", process) is None
    assert _control_group(tmp_path / "none", tmp_path / "missing") is None


def test_the_allocators_own_error_is_told_from_other_runtime_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
