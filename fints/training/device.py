"""Where a fit runs, and how much memory is free there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

__all__ = ["free_bytes", "is_out_of_memory", "release", "resolve_device", "unless_memory_runs_out"]

Measured = TypeVar("Measured")


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device called `name`, with a remedy if this machine does not have it.

    Parameters
    ----------
    name
        "auto" (CUDA if there is one, else Apple's MPS, else the CPU), "cpu", "cuda", "cuda:1"
        or "mps".

    Raises
    ------
    ValueError
        If the name is unknown or the device is absent.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (":" in name and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f"device {name!r} is unknown: choose auto, cpu, cuda, cuda:0, cuda:1, ... or mps.")
    if kind == "cuda":
        if not torch.cuda.is_available():
            why = (
                "no CUDA device answers; check the driver with nvidia-smi"
                if torch.version.cuda is not None
                else f"the installed torch {torch.__version__} is built without CUDA; install a CUDA build"
            )
            raise ValueError(f"device {name!r} is not available: {why}, or choose auto or cpu.")
        number = int(index) if index else torch.cuda.current_device()
        if number >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise ValueError(f"device {name!r} is not available: this machine has cuda:0 to cuda:{last}.")
        return torch.device("cuda", number)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name!r} is not available: it needs Apple silicon; choose auto or cpu.")
    return torch.device(kind)


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that a fit may still take on `device`, None where nothing tells.

    CUDA: what the driver has free plus what torch's allocator holds unused. CPU: the memory the
    kernel can give without swapping, or what the control group of the process still allows if
    that is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    limits = [limit for limit in (_available(), _control_group()) if limit is not None]
    return min(limits, default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory ran out, on the CPU or on an accelerator.

    The CPU allocator and CUDA's libraries raise a plain RuntimeError, which only its text tells from
    others; the libraries end in a status such as CUBLAS_STATUS_ALLOC_FAILED.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    marks = (
        "not enough memory",
        "DefaultCPUAllocator",
        "can't allocate memory",
        "out of memory",
        "STATUS_ALLOC_FAILED",
    )
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in marks)


def unless_memory_runs_out(measure: Callable[[], Measured], device: torch.device) -> Measured | None:
    """Return `measure()`, or None if memory ran out in it: no measurement is worth a fit."""
    try:
        return measure()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: an exception in flight keeps the frames, and their tensors, alive.
    release(device)
    return None


def release(device: torch.device) -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: the memory of the machine is the only bound at hand
        names = getattr(os, "sysconf_names", {})
        if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _control_group(
    root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Return what the tightest memory limit above this process leaves (cgroup v2, then v1)."""
    try:
        entries = [line.split(":", 2) for line in process.read_text().splitlines()]
    except OSError:
        return None
    left = []
    for _, controllers, path in entries:
        if controllers == "":
            base, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        # Inside a container the path may be that of the host, which is not mounted: its root is.
        for folder in (group, *group.parents):
            if folder != base and base not in folder.parents:
                break
            bound, used = _number(folder / limit), _number(folder / usage)
            if bound is not None and used is not None:
                left.append(max(0, bound - used + _reclaimable(folder)))
    return min(left, default=None)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of file cache that the kernel drops before it refuses memory."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = {key: value for key, _, value in (line.partition(" ") for line in lines)}
    value = found.get("total_inactive_file", found.get("inactive_file", "0"))
    return int(value) if value.isdecimal() else 0
