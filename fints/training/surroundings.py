"""What a fit needs of torch and of the network while it runs: random stream, threads, which pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig
from fints.training.seeds import private_stream, threads

__all__ = ["compiled", "surroundings"]

# The attribute of a transformer that makes it recompute activations in the backward pass.
CHECKPOINTING = "activation_checkpointing"
# The method of a transformer that returns its fast pass, given a backend or None.
COMPILED = "compiled"


@contextmanager
def surroundings(model: nn.Module, config: TrainingConfig, device: torch.device) -> Iterator[None]:
    """Set what the fit needs of torch and the model, and put it back."""
    checkpointing = bool(getattr(model, CHECKPOINTING, False))
    with private_stream(device), threads(config.threads), torch.inference_mode(False), torch.enable_grad():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if config.activation_checkpointing:
            setattr(model, CHECKPOINTING, True)
        try:
            yield
        finally:
            if config.activation_checkpointing:
                setattr(model, CHECKPOINTING, checkpointing)
            if config.compile and getattr(model, COMPILED, None) is None:
                # Compiled code is cached by function, not by model: after eight models of one
                # class torch would stop compiling and run them eagerly.
                torch.compiler.reset()


def compiled(model: nn.Module, backend: str | None) -> Callable[[Tensor], Any]:
    """Return the network's own fast pass, or torch's compilation of a network that has none."""
    own = getattr(model, COMPILED, None)
    if own is not None:
        forward: Callable[[Tensor], Any] = own(backend)
        return forward
    return torch.compile(model, dynamic=False, backend=backend or "inductor")
