"""Residual schemes: the table of names, and one idea a file.

`RESIDUALS` is the one place where a name becomes a class. To add a scheme, write its class after
`Residual`, add a row here, and a test of its literal equation on randomised parameters.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from fints.residual.admin import Admin
from fints.residual.attention_residuals import AttentionResiduals, BlockAttentionResiduals
from fints.residual.base import Branch, Mixing, Residual, State, make_norm
from fints.residual.by_depth import ByDepth
from fints.residual.deep_norm import DeepNorm
from fints.residual.denseformer import DenseFormer
from fints.residual.frac_connections import FracConnections, StaticFracConnections
from fints.residual.gated_streams import GatedCopies, GatedStreams
from fints.residual.hyper_connections import DynamicHyperConnections, StaticHyperConnections
from fints.residual.layer_norm_scaling import LayerNormScaling
from fints.residual.manifold import ManifoldHyperConnections
from fints.residual.mix_ln import MixLN
from fints.residual.output_norms import PeriLN, SandwichNorm
from fints.residual.rescaled_norms import (
    FrozenScalePostNorm,
    WindowRescaledPreNorm,
    WindowScaleRestoringPostNorm,
)
from fints.residual.resi_dual import ResiDual
from fints.residual.single_stream import NoSkip, PostNorm, PreNorm
from fints.residual.skip_weights import LayerScale, LearnableSkip, ReZero, SkipInit
from fints.residual.state_attention import StateAttention

__all__ = [
    "RESIDUALS",
    "Admin",
    "AttentionResiduals",
    "BlockAttentionResiduals",
    "Branch",
    "ByDepth",
    "DeepNorm",
    "DenseFormer",
    "DynamicHyperConnections",
    "FracConnections",
    "FrozenScalePostNorm",
    "GatedCopies",
    "GatedStreams",
    "LayerNormScaling",
    "LayerScale",
    "LearnableSkip",
    "ManifoldHyperConnections",
    "MixLN",
    "Mixing",
    "NoSkip",
    "PeriLN",
    "PostNorm",
    "PreNorm",
    "ReZero",
    "ResiDual",
    "Residual",
    "SandwichNorm",
    "SkipInit",
    "State",
    "StateAttention",
    "StaticFracConnections",
    "StaticHyperConnections",
    "WindowRescaledPreNorm",
    "WindowScaleRestoringPostNorm",
    "build_residual",
    "make_norm",
    "options_of",
]

RESIDUALS: dict[str, type[Residual[Any]]] = {
    "pre_norm": PreNorm,
    "post_norm": PostNorm,
    "no_skip": NoSkip,
    "learnable_skip": LearnableSkip,
    "sandwich_norm": SandwichNorm,
    "peri_ln": PeriLN,
    "layer_norm_scaling": LayerNormScaling,
    "layer_scale": LayerScale,
    "re_zero": ReZero,
    "skip_init": SkipInit,
    "deep_norm": DeepNorm,
    "resi_dual": ResiDual,
    "admin": Admin,
    "window_rescaled_pre_norm": WindowRescaledPreNorm,
    "window_scale_restoring_post_norm": WindowScaleRestoringPostNorm,
    "frozen_scale_post_norm": FrozenScalePostNorm,
    "static_hyper_connections": StaticHyperConnections,
    "dynamic_hyper_connections": DynamicHyperConnections,
    "manifold_hyper_connections": ManifoldHyperConnections,
    "static_frac_connections": StaticFracConnections,
    "frac_connections": FracConnections,
    "gated_streams": GatedStreams,
    "gated_copies": GatedCopies,
    "attention_residuals": AttentionResiduals,
    "block_attention_residuals": BlockAttentionResiduals,
    "state_attention": StateAttention,
    "denseformer": DenseFormer,
    "mix_ln": MixLN,
    "by_depth": ByDepth,
}

# Keyword arguments of every scheme that the network gives, so that they are not options.
_GIVEN = frozenset({"norm", "norm_eps", "first_layer"})


def build_residual(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    width: int,
    num_sublayers: int,
    norm: str = "layer_norm",
    norm_eps: float = 1e-5,
    first_layer: int = 0,
) -> Residual[Any]:
    """Build the scheme called `name`, with its own `options`.

    >>> import torch
    >>> scheme = build_residual("static_hyper_connections", {"num_streams": 2}, width=4, num_sublayers=2)
    >>> state = scheme.open(torch.ones(1, 3, 4))
    >>> state.shape  # (n, B, T, D)
    torch.Size([2, 1, 3, 4])
    >>> state = scheme.step(state, 0, lambda h: 0.5 * h)
    >>> scheme.close(state, 2).shape
    torch.Size([1, 3, 4])

    Raises
    ------
    ValueError
        If the name or an option is unknown (the nearest and the known ones are said), or an option
        has the wrong type or a value that the scheme refuses.
    """
    scheme = _scheme(name)
    options = {} if options is None else options
    known = options_of(name)
    hints = typing.get_type_hints(scheme.__init__)
    for option, value in options.items():
        if option not in known:
            listed = f"Options of {name}: {', '.join(known)}." if known else f"{name} has no options."
            raise ValueError(f"unknown option {option!r} of {name}.{_near(option, known)} {listed}")
        wanted = hints[option]
        if typing.get_origin(wanted) is types.UnionType:
            # An option that may be left open: a value, or None for the scheme's own choice.
            if value is None:
                continue
            (wanted,) = (kind for kind in typing.get_args(wanted) if kind is not type(None))
        wanted = typing.get_origin(wanted) or wanted
        # bool is a subclass of int, and a whole number stands for a float.
        fits = isinstance(value, bool) == (wanted is bool) and isinstance(
            value, (int, float) if wanted is float else wanted
        )
        if not fits:
            raise ValueError(f"option {option} of {name} must be {_WANTED[wanted]}; got {value!r}.")
    return scheme(width, num_sublayers, norm=norm, norm_eps=norm_eps, first_layer=first_layer, **options)


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a scheme with their defaults.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(_scheme(name)).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in _GIVEN
    }


_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list"}


def _scheme(name: str) -> type[Residual[Any]]:
    if name not in RESIDUALS:
        known = ", ".join(RESIDUALS)
        raise ValueError(f"unknown residual scheme {name!r}.{_near(name, RESIDUALS)} Known schemes: {known}.")
    return RESIDUALS[name]


def _near(name: object, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
