"""What makes two fits the same, so that a checkpoint resumes only the fit it came from."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor, nn

from fints.config import TrainingConfig, part_to_dict
from fints.training.batches import Batches

__all__ = ["fit_identity"]


def fit_identity(
    model: nn.Module, train: Batches, validation: Batches | None, config: TrainingConfig, seed: int
) -> str:
    """Return a hash of what makes two fits the same: network, initial weights, data, schedule, seed.

    Weights and windows are sampled evenly: enough to tell two fits apart, cheap for large ones. The
    model is to be given as it is before the first step.
    """
    digest = hashlib.sha256(json.dumps([part_to_dict(config), seed, repr(model)]).encode())
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 4096)].cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_bytes(sample))
    for batches in (train, validation):
        number = 0 if batches is None else len(batches)
        digest.update(f"windows {number}".encode())
        if batches is not None:
            positions = torch.linspace(0, number - 1, min(number, 64), dtype=torch.float64).long()
            for tensor in batches.gather(positions):
                digest.update(f"{tuple(tensor.shape[1:])} {tensor.dtype}".encode())
                digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
