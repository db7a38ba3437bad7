"""Parts of a network that are compiled once and run at every depth.

A region is a function of modules and a state. Its code depends on the structure of the modules, not on
their numbers, which enter it as inputs: so one compilation serves all blocks of a network, and all
networks of that structure in the process. To compile a whole network takes time that grows with its depth.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fints.model.branches import CausalSelfAttention
from fints.residual import Residual, State

__all__ = ["attention_region", "block_region", "branch_region", "compiled_region", "view_of"]

# Structures whose code is kept; another one drops all of them, so that a process that fits many
# networks one after another neither grows nor compiles the usual few again.
MOST_STRUCTURES = 32
# Variants of one structure: training and evaluation, with and without gradients, precisions, batch sizes.
MOST_VARIANTS = 64

_regions: dict[tuple[Any, ...], Callable[..., Any]] = {}


def compiled_region(
    function: Callable[..., Any], structure: str, *, backend: str | Callable[..., Any]
) -> Callable[..., Any]:
    """Return `function` compiled, the same object for the same structure.

    Parameters
    ----------
    function
        A region, of this file.
    structure
        What tells networks apart whose regions must not share code.
    backend
        Of torch.compile.
    """
    key = (function, structure, backend)
    if key not in _regions:
        if len(_regions) >= MOST_STRUCTURES:
            _regions.clear()
            torch.compiler.reset()
        # Dropout then draws what it draws without a compiler, in every arm of a study.
        options: dict[str, Any] | None = {"fallback_random": True} if backend == "inductor" else None
        _regions[key] = torch.compile(
            function,
            fullgraph=True,
            dynamic=False,
            backend=backend,
            options=options,
            recompile_limit=MOST_VARIANTS,
            isolate_recompiles=True,
        )
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
    num_sublayers = len(scheme.get_submodule("norms"))  # type: ignore[arg-type]
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
