"""Diagnostics: what happens inside a network, by sublayer. They measure and change nothing."""

from __future__ import annotations

from fints.diagnostics.depth_mixing import DepthMixing, depth_mixing
from fints.diagnostics.gradients import branch_gradient_norms, output_gradient_norms, update_to_weight
from fints.diagnostics.profile import MEASURES, Profiler, profile
from fints.diagnostics.similarity import (
    centred,
    effective_rank,
    mean_cosine,
    null_cosine,
    relative_size,
    token_cosine,
)

__all__ = [
    "MEASURES",
    "DepthMixing",
    "Profiler",
    "branch_gradient_norms",
    "centred",
    "depth_mixing",
    "effective_rank",
    "mean_cosine",
    "null_cosine",
    "output_gradient_norms",
    "profile",
    "relative_size",
    "token_cosine",
    "update_to_weight",
]
