"""Parts of a network that are compiled once and run at every depth.

A region is a function of modules and a state. Its code depends on the structure of the modules, not on
their numbers, which enter it as inputs: so one compilation serves all blocks of a network, and all
networks of that structure in the process. To compile a whole network takes time that grows with its depth.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fints.model.branches import CausalSelfAttention
from fints.residual import Residual, State

__all__ = ["attention_region", "block_region", "branch_region", "compiled_region", "view_of"]

# Regions whose code is kept. One more drops all of them, so that a process that fits many networks one
# after another does not grow, yet compiles the usual few once.
MOST_REGIONS = 64

_regions: dict[tuple[Any, ...], Callable[..., Any]] = {}


def compiled_region(
    function: Callable[..., Any], use: tuple[Any, ...], *, backend: str | Callable[..., Any]
) -> Callable[..., Any]:
    """Return `function` compiled, the same object for the same use.

    Parameters
    ----------
    function
        A region, of this file.
    use
        All that the code may depend on: structure of the modules, mode, shapes, precision.
    backend
        Of torch.compile.
    """
    key = (function, use, backend)
    if key not in _regions:
        if len(_regions) >= MOST_REGIONS:
            _regions.clear()
            torch.compiler.reset()
        # torch keeps compiled code by code object and stops at eight variants of one: each use has its own.
        own = types.FunctionType(function.__code__.replace(), function.__globals__)
        # Dropout then draws what it draws without a compiler, so that all arms of a study draw the same.
        options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
        _regions[key] = torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)
    return _regions[key]


def branch_region(branch: nn.Module, u: Tensor) -> Tensor:
    """Return F(u)."""
    result: Tensor = branch(u)
    return result


def attention_region(
    branch: CausalSelfAttention, u: Tensor, first_value: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return F(u) and the values of an attention that shares the first one's values."""
    return branch.attend(u, first_value)


def block_region(scheme: Residual[Any], branches: Sequence[nn.Module], state: State) -> State:
    """Return the state after some sublayers; `scheme` is a view of these alone."""
    for layer, branch in enumerate(branches):
        state = scheme.step(state, layer, branch)
    return state


def view_of(scheme: Residual[Any], first: int, count: int) -> Residual[Any]:
    """Return the scheme of sublayers `first` to `first + count - 1` alone, on the same parameters.

    Needs what every scheme keeps: all that belongs to a sublayer is an entry of a container, or of the
    first axis of a buffer, that is as long as there are sublayers.
    """
    norms = scheme.get_submodule("norms")
    assert isinstance(norms, nn.ModuleList)
    num_sublayers = len(norms)
    view = copy.copy(scheme)
    view._modules, view._buffers = dict(scheme._modules), dict(scheme._buffers)
    for name, module in scheme._modules.items():
        if isinstance(module, nn.ModuleList) and len(module) == num_sublayers:
            view._modules[name] = module[first : first + count]
        elif isinstance(module, nn.ParameterList) and len(module) == num_sublayers:
            view._modules[name] = nn.ParameterList(module[first : first + count])
    for name, buffer in scheme._buffers.items():
        if buffer is not None and buffer.dim() and len(buffer) == num_sublayers:
            view._buffers[name] = buffer[first : first + count]
    return view
