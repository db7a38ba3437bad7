"""Seeds that are the same in every arm, and number streams that leave the caller's alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

__all__ = ["derive", "one_thread", "private_stream", "reseed", "threads"]


def derive(seed: int, *labels: str | int) -> int:
    r"""Return a seed of its own for each purpose, from one seed and the names of the purpose.

    .. math:: \mathrm{derive}(s, \ell_1, \ldots) =
        \text{first 63 bits of SHA-256 of the JSON list } [s, \ell_1, \ldots]

    The same on every machine and in every Python, unlike `hash`. Streams that are derived with
    different labels are independent for all practical ends, so the batch order does not change
    when something else starts to draw random numbers.

    Parameters
    ----------
    seed
        Any whole number.
    labels
        Texts or whole numbers, e.g. ``derive(seed, "batches", epoch)``. The text "1" and the
        number 1 give different seeds.

    Returns
    -------
    int
        In [0, 2^63), which every torch generator takes.
    """
    for part in (seed, *labels):
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise ValueError(f"a seed is derived from whole numbers and texts; got {part!r}.")
    text = json.dumps([seed, *labels], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute on `number` CPU threads inside, and on as many as before afterwards.

    Sums over several threads are rounded in an order that depends on their number, so equal bits
    need an equal number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Compute on one CPU thread inside: the same bits on every machine with the same kernels."""
    return threads(1)


@contextmanager
def private_stream(device: torch.device) -> Iterator[None]:
    """Let code inside draw from torch's global generators, and put them back afterwards."""
    cpu = torch.random.get_rng_state()
    accelerator = _accelerator_state(device)
    try:
        yield
    finally:
        torch.random.set_rng_state(cpu)
        if device.type == "mps":
            torch.mps.set_rng_state(accelerator)
        elif device.type != "cpu":
            torch.get_device_module(device).set_rng_state(accelerator, device)


def reseed(seed: int, device: torch.device) -> None:
    """Seed the global generators of the CPU and of `device`, and of no other device."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)
    elif device.type != "cpu":
        with torch.get_device_module(device).device(device):
            torch.get_device_module(device).manual_seed(seed)


def _accelerator_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.empty(0, dtype=torch.uint8)
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)
