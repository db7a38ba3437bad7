"""The network: branches, embedding, heads, and the transformer that a residual scheme holds together."""

from __future__ import annotations

from fints.model.branches import CausalSelfAttention, FeedForward
from fints.model.convert import convert
from fints.model.embedding import Embedding
from fints.model.heads import Forecast
from fints.model.memory import estimate_memory
from fints.model.plain import MLP, DLinear
from fints.model.trace import Trace
from fints.model.transformer import Transformer, build, parameter_count

__all__ = [
    "MLP",
    "CausalSelfAttention",
    "DLinear",
    "Embedding",
    "FeedForward",
    "Forecast",
    "Trace",
    "Transformer",
    "build",
    "convert",
    "estimate_memory",
    "parameter_count",
]
