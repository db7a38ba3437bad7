"""Diagnostics: what happens inside a network, by sublayer. They measure and change nothing.

Three families, never merged into one number: depth redundancy, token collapse, stream collapse
(`depth_table`, `stream_rows`, with what misleads beside each); gradients and their signal; and what a
sublayer does for the loss (`skip_rows`, `probe_rows`).
"""

from __future__ import annotations

from fints.diagnostics.averages import by_position, over_series
from fints.diagnostics.depth_mixing import DepthMixing, depth_mixing
from fints.diagnostics.depth_penalty import (
    DepthPenalty,
    calibrated_share,
    depth_penalty,
    forecast_variance_ratio,
    share_of_oracle,
)
from fints.diagnostics.depth_table import depth_table, gradient_table
from fints.diagnostics.gradient_signal import (
    BatchVariance,
    GradientSignal,
    batch_gradient_variance,
    gradient_signal,
    noise_free_signal,
    per_sample_gradients,
)
from fints.diagnostics.gradients import branch_gradient_norms, output_gradient_norms, update_to_weight
from fints.diagnostics.kernel_alignment import linear_cka
from fints.diagnostics.manipulation import ManipulationCheck, Move, manipulation_check, move, relieves
from fints.diagnostics.mediators import MEDIATORS, mediators
from fints.diagnostics.output_change import output_change, output_change_by_branch, step_output_change
from fints.diagnostics.probes import last_tokens, probe_rows, ridge_probe
from fints.diagnostics.profile import MEASURES, Profiler, profile
from fints.diagnostics.record import TENSORS, Record, record, streams
from fints.diagnostics.similarity import (
    centred,
    effective_rank,
    mean_cosine,
    null_cosine,
    relative_size,
    token_cosine,
)
from fints.diagnostics.skipping import contiguous_sublayers, loss_when_skipped, skip_rows
from fints.diagnostics.spectrum import participation_ratio, stable_rank
from fints.diagnostics.stream_spread import stream_rows
from fints.diagnostics.training_curves import RateRange, learning_rate_range, spikes_per_thousand

__all__ = [
    "MEASURES",
    "MEDIATORS",
    "TENSORS",
    "BatchVariance",
    "DepthMixing",
    "DepthPenalty",
    "GradientSignal",
    "ManipulationCheck",
    "Move",
    "Profiler",
    "RateRange",
    "Record",
    "batch_gradient_variance",
    "branch_gradient_norms",
    "by_position",
    "calibrated_share",
    "centred",
    "contiguous_sublayers",
    "depth_mixing",
    "depth_penalty",
    "depth_table",
    "effective_rank",
    "forecast_variance_ratio",
    "gradient_signal",
    "noise_free_signal",
    "gradient_table",
    "last_tokens",
    "learning_rate_range",
    "linear_cka",
    "loss_when_skipped",
    "manipulation_check",
    "mean_cosine",
    "mediators",
    "move",
    "null_cosine",
    "output_change",
    "output_change_by_branch",
    "output_gradient_norms",
    "over_series",
    "participation_ratio",
    "per_sample_gradients",
    "probe_rows",
    "relieves",
    "profile",
    "record",
    "relative_size",
    "ridge_probe",
    "share_of_oracle",
    "skip_rows",
    "spikes_per_thousand",
    "stable_rank",
    "step_output_change",
    "stream_rows",
    "streams",
    "token_cosine",
    "update_to_weight",
]
