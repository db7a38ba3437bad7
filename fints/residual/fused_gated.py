"""The fused form of gated streams; see `fints.residual.fused`."""

from __future__ import annotations

from torch import Tensor

from fints.residual.base import Branch, full_precision
from fints.residual.gated_functions import PendingStreams, write_and_average, write_and_gate
from fints.residual.gated_streams import GatedStreams
from fints.residual.native import MOST_STREAMS
from fints.residual.norm_arguments import norm_arguments, whole_vectors
from fints.residual.streams import copies

__all__ = ["FusedGated"]


class FusedGated:
    """Gated streams whose steps write, read and norm in one pass.

    Parameters
    ----------
    scheme : GatedStreams
        Its parameters and options are read at every step; nothing is copied.
    """

    def __init__(self, scheme: GatedStreams) -> None:
        self.scheme = scheme

    def fits(self) -> bool:
        """Return whether the kernels are made for the scheme's sizes."""
        return self.scheme.num_streams <= MOST_STREAMS and whole_vectors(self.scheme)

    def open(self, x: Tensor) -> PendingStreams:
        """Return n copies of x, on which nothing is due."""
        return PendingStreams(copies(x, self.scheme.num_streams))

    def step(self, pending: PendingStreams, layer: int, branch: Branch) -> PendingStreams:
        """Return the state after sublayer `layer`."""
        scheme = self.scheme
        with full_precision(pending[0]):
            z, w, streams = write_and_gate(
                PendingStreams(*pending),
                scheme.W[layer],
                scheme.b[layer],
                norm_arguments(scheme.norms[layer]),
                variant=scheme.variant,
                factor=scheme.gate_scale,
                eps=scheme.norm_eps,
            )
        return PendingStreams(streams, branch(z).to(streams.dtype), w)

    def close(self, pending: PendingStreams, layer: int) -> Tensor:
        """Return N(mean of the streams)."""
        norm = norm_arguments(self.scheme.final_norm)
        with full_precision(pending[0]):
            return write_and_average(PendingStreams(*pending), norm, variant=self.scheme.variant)
