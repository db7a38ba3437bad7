"""Training: one loop, its losses, its optimiser, its checkpoints, and the forecasts after it.

Needs torch alone.
"""

from __future__ import annotations

from fints.training.batches import Batches, BatchOrder
from fints.training.common import LayerProfiler
from fints.training.device import free_bytes, resolve_device
from fints.training.distributed import fit, sharing
from fints.training.evaluate import evaluate
from fints.training.losses import gaussian_nll, huber, make_loss, mse, student_t_nll
from fints.training.optimizer import learning_rate, make_optimizer, parameter_groups
from fints.training.predict import predict
from fints.training.result import FitResult
from fints.training.seeds import derive, one_thread, threads
from fints.training.steering import Steering
from fints.training.vectorised import MAY_DIFFER, Member, cannot_be_vectorised, fit_together
from fints.training.weights import Weights, by_row, lengths

__all__ = [
    "MAY_DIFFER",
    "BatchOrder",
    "Batches",
    "FitResult",
    "LayerProfiler",
    "Member",
    "Steering",
    "Weights",
    "by_row",
    "cannot_be_vectorised",
    "derive",
    "evaluate",
    "fit",
    "fit_together",
    "free_bytes",
    "gaussian_nll",
    "huber",
    "learning_rate",
    "lengths",
    "make_loss",
    "make_optimizer",
    "mse",
    "one_thread",
    "parameter_groups",
    "predict",
    "resolve_device",
    "sharing",
    "student_t_nll",
    "threads",
]
