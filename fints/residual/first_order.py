"""Gradients that are written out have none of their own: a request for one is refused at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["first_order"]


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let `backward`, of an autograd Function, refuse to be recorded.

    torch's own `once_differentiable` refuses only once a second derivative comes through its outputs.
    ``torch.autograd.grad(gradient, x)`` never does where another way leads to x, as around a Post-Norm's
    sum, and then gives a part of the second derivative for the whole.

    Raises
    ------
    ValueError
        When called with ``create_graph=True``.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, *gradients: Any) -> Any:
        # Autograd records a backward pass exactly where it is to be differentiated.
        if torch.is_grad_enabled():
            raise ValueError(
                "the fast pass has first derivatives only; create_graph=True asks for second ones. Call the "
                "network itself (training.compile = false) to have them."
            )
        return backward(ctx, *gradients)

    return refusing
