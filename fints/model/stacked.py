"""One pass of several networks of one structure, with stacked parameters.

Small networks spend most of a step on calls. Here a call is made once for all of them, and each network's
numbers are those of its own pass.

Shapes: K networks, B batch, T tokens, F features, D width, H horizons.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fints.model.branches import CausalSelfAttention
from fints.model.heads import Forecast
from fints.model.native_members import AttentionBranches, FeedForwards, has_stacked_form
from fints.residual import PostNorm, PreNorm, Residual
from fints.residual.fused import fused
from fints.residual.fused_by_depth import FusedByDepth
from fints.residual.native import kernels
from fints.residual.norm_arguments import norm_arguments
from fints.residual.single_members import add_and_norm_all

if TYPE_CHECKING:
    from fints.model.transformer import Transformer

__all__ = ["StackedPass"]


_At = Callable[[int, Tensor, Tensor], Tensor]


class _Form(Protocol):
    def __call__(self, x: Tensor, masks: Sequence[Tensor], at: _At | None) -> Tensor: ...


class StackedPass:
    """The forward pass of K networks; call it with windows (K, B, T, F).

    On a CPU branches run in `fints.model.native_members`, where the kernels are made for their sizes.
    Residual schemes run in one of three ways: Pre-Norm and Post-Norm in a pass over all networks, others that
    have a fused form (`fints.residual.fused`) network by network between the branches of all, and the rest,
    as everything does on other devices, by `torch.vmap` of the plain network.

    What a network computes depends on its own numbers alone. Dropout is not drawn here: the caller gives
    masks. A caller that looks at each sublayer (`watchable`) has Pre-Norm and Post-Norm run layer by layer on
    every device.

    Parameters
    ----------
    networks : sequence of Transformer
        All of one structure, on one device; those of the residual scheme may be read at each call.
    leaves : mapping of str to Tensor
        Stacked parameters (K, ...) by name.

    Raises
    ------
    ValueError
        If the networks differ in structure, a pass of one is altered, or the kernels need a C++ compiler and
        there is none.
    """

    def __init__(self, networks: Sequence[Transformer], leaves: Mapping[str, Tensor]) -> None:
        self.networks, self.leaves = list(networks), dict(leaves)
        first = self.networks[0]
        if any(repr(each) != repr(first) for each in networks):
            raise ValueError(
                "networks that are trained together must have one structure; these differ in their options. "
                "Fit one by one."
            )
        # An alteration that only watches has no part in a pass; who trains the network looks on its behalf.
        altered = [each.alteration for each in networks if each.alteration is not None]
        if not all(getattr(each, "only_watches", False) for each in altered):
            raise ValueError(
                "an altered network cannot be trained together with others; train it by itself, or leave "
                "training.interventions empty."
            )
        self.dropout = float(getattr(first.branches[0].dropout, "p", 0.0))
        native = next(first.parameters()).device.type == "cpu"
        if native:
            kernels()
        self._plain = _PlainPass(first, native=native)
        self._form: _Form | None = None
        self._native = native and all(map(has_stacked_form, first.branches))
        self._by_layer = self._layered()
        if self._native and first.value_residual == "none":
            if self._by_layer is not None:
                self._form = self._by_layer
            elif _hands_on(fused(first.residual)):
                self._fused: list[Any] = [fused(each.residual) for each in networks]
                self._form = self._woven
        self._buffers = self._stacked_buffers()

    def mask_shapes(self, x: Tensor) -> list[tuple[int, ...]]:
        """Return the shape (B, T, D) of a network's mask, for each sublayer, of windows x (K, B, T, F)."""
        width = self.networks[0].head.linear.in_features
        return [(*x.shape[1:3], width)] * len(self.networks[0].branches)

    @property
    def woven(self) -> bool:
        """Whether the residual scheme's own parameters are those of each network, not of the stack."""
        return self._form == self._woven

    @property
    def watchable(self) -> bool:
        """Whether a pass can be looked at sublayer by sublayer."""
        return self._by_layer is not None

    def __call__(self, x: Tensor, masks: Sequence[Tensor] = (), at: _At | None = None) -> Forecast:
        """Return the forecasts, each field (K, B, T, H).

        Parameters
        ----------
        x
            Windows (K, B, T, F), NaN where missing.
        masks
            What each branch's output is multiplied by, (K, B, T, D) a sublayer; none in evaluation.
        at
            ``at(layer, u, y)`` is called with what each sublayer read, before any norm, and returned,
            (K, B, T, D) both; what it returns goes on in place of y.

        Raises
        ------
        ValueError
            If there is an `at` and the pass is not `watchable`.
        """
        self.networks[0].check_tokens(x)
        form = self._form if at is None else self._by_layer
        if form is None and at is not None:
            raise ValueError(
                "the pass of several networks can be looked at by sublayer under pre_norm and post_norm, "
                "without a value residual; train these networks one by one."
            )
        if form is None:
            return _forecast(torch.vmap(self._plain_pass)(self.leaves, self._buffers, x, tuple(masks)))
        embedded = torch.vmap(self._embed)(self._of("embedding."), x)
        z = form(embedded, masks, at)
        return _forecast(torch.vmap(self._head)(self._of("head."), z))

    def _plain_pass(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        masks: tuple[Tensor, ...],
    ) -> tuple[Tensor, ...]:
        named = {f"network.{name}": value for name, value in {**parameters, **buffers}.items()}
        found: tuple[Tensor, ...] = functional_call(self._plain, named, (x, masks))
        return found

    def _of(self, prefix: str) -> dict[str, Tensor]:
        return _under(prefix, self.leaves)

    def _embed(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        embedded: Tensor = functional_call(self.networks[0].embedding, parameters, (x,))
        return embedded

    def _head(self, parameters: dict[str, Tensor], z: Tensor) -> tuple[Tensor, ...]:
        return _fields(functional_call(self.networks[0].head, parameters, (z,)))

    def _layered(self) -> _Form | None:
        """Return the pass that goes layer by layer over all networks, None where there is none."""
        first = self.networks[0]
        if first.value_residual != "none":
            return None
        if isinstance(first.residual, PreNorm):
            return self._pre_norm
        return self._post_norm if isinstance(first.residual, PostNorm) else None

    def _branch(self, layer: int, u: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the outputs of the branches `layer`, for u (K, B, T, D)."""
        branch, own = self.networks[0].branches[layer], self._of(f"branches.{layer}.")
        y: Tensor
        if not self._native:
            y = self._of_each(self._plain.network.branches[layer], f"branches.{layer}.", u)
        elif isinstance(branch, CausalSelfAttention):
            y = AttentionBranches.apply(*_attention(branch, own, u, None), False, torch.is_grad_enabled())[0]
        else:
            y = FeedForwards.apply(u, *_feed_forward(own))
        return y * masks[layer] if masks else y

    def _of_each(self, module: nn.Module, prefix: str, u: Tensor) -> Tensor:
        """Return what `module` makes of u (K, ...), with each network's own numbers under `prefix`."""

        def one(own: dict[str, Tensor], u: Tensor) -> Tensor:
            made: Tensor = functional_call(module, own, (u,))
            return made

        return torch.vmap(one)(_under(prefix, {**self._buffers, **self.leaves}), u)

    def _pre_norm(self, x: Tensor, masks: Sequence[Tensor], at: _At | None) -> Tensor:
        """Return N(h), h <- h + F(N(h))."""
        h, y = x, None
        for layer in range(len(self.networks[0].branches)):
            u, h = self._norm(f"norms.{layer}", h, y)
            y = self._branch(layer, u, masks)
            y = y if at is None else at(layer, h, y)
        return self._norm("final_norm", h, y)[0]

    def _post_norm(self, x: Tensor, masks: Sequence[Tensor], at: _At | None) -> Tensor:
        """Return h, h <- N(h + F(h))."""
        h = x
        for layer in range(len(self.networks[0].branches)):
            y = self._branch(layer, h, masks)
            h = self._norm(f"norms.{layer}", h, y if at is None else at(layer, h, y))[0]
        return h

    def _norm(self, name: str, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self._native:
            h = x if y is None else x + y
            norm = self._plain.network.residual.get_submodule(name)
            return self._of_each(norm, f"residual.{name}.", h), h
        _, _, centred, eps = norm_arguments(self.networks[0].residual.get_submodule(name))
        gain, bias = (self.leaves.get(f"residual.{name}.{part}") for part in ("weight", "bias"))
        assert gain is not None
        return add_and_norm_all(x, y, gain, bias, centred=centred, eps=eps)

    def _woven(self, x: Tensor, masks: Sequence[Tensor], at: _At | None) -> Tensor:
        """Return the read-outs; a fused step hands on what its branch returned without a look at it."""
        states: list[Any] = [scheme.open(each) for scheme, each in zip(self._fused, x.unbind(), strict=True)]
        number = len(self.networks[0].branches)
        for layer in range(number):
            read: list[Tensor] = []

            def note(u: Tensor, read: list[Tensor] = read) -> Tensor:
                read.append(u)
                return u

            for k, scheme in enumerate(self._fused):
                step = scheme.within if isinstance(scheme, FusedByDepth) else scheme.step
                states[k] = step(states[k], layer, note)
            returned = self._branch(layer, torch.stack(read), masks).unbind()
            states = [state._replace(y=y) for state, y in zip(states, returned, strict=True)]
            if isinstance(self._fused[0], FusedByDepth):
                states = [
                    scheme.crossed(state, layer) for scheme, state in zip(self._fused, states, strict=True)
                ]
        closed = [scheme.close(state, number) for scheme, state in zip(self._fused, states, strict=True)]
        return torch.stack(closed)

    def _stacked_buffers(self) -> dict[str, Tensor]:
        """Return what is neither trained nor equal in all networks of its own accord, stacked."""
        named = [dict(each.named_buffers()) for each in self.networks]
        for each, network in zip(named, self.networks, strict=True):
            each.update((name, p) for name, p in network.named_parameters() if name not in self.leaves)
        return {name: torch.stack([each[name].detach() for each in named]) for name in named[0]}


class _PlainPass(nn.Module):
    """One network's plain pass, with masks in place of dropout and branches that a vmap runs at once."""

    def __init__(self, network: Transformer, *, native: bool) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        for branch in self.network.branches:
            branch.dropout = nn.Identity()
        self.native = native

    def forward(self, x: Tensor, masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the fields of the forecast of x (B, T, F)."""
        network, scheme = self.network, self.network.residual
        state: Any = scheme.open(network.embedding(x))
        first_value: Tensor | None = None
        for layer, branch in enumerate(network.branches):
            handed: list[Tensor] = []

            def call(
                u: Tensor,
                layer: int = layer,
                branch: nn.Module = branch,
                first_value: Tensor | None = first_value,
                handed: list[Tensor] = handed,
            ) -> Tensor:
                hand_on = layer == 0 and network.value_residual != "none"
                y, value = self._run(branch, u, first_value, hand_on=hand_on)
                if hand_on and value is not None:
                    handed.append(value)
                return y * masks[layer] if masks else y

            state = scheme.step(state, layer, call)
            first_value = handed[0] if handed else first_value
        return _fields(network.head(scheme.close(state, len(network.branches))))

    def _run(
        self, branch: nn.Module, u: Tensor, first_value: Tensor | None, *, hand_on: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.native and u.dtype == torch.float32 and has_stacked_form(branch):
            own = dict(branch.named_parameters())
            if not isinstance(branch, CausalSelfAttention):
                return FeedForwards.apply(u, *_feed_forward(own)), None
            first = None if branch.value_mix is None else first_value
            return AttentionBranches.apply(*_attention(branch, own, u, first), hand_on, True)[:2]
        if isinstance(branch, CausalSelfAttention):
            return branch.attend(u, first_value)
        return branch(u), None


def _hands_on(form: Any) -> bool:
    """Return whether each step of a fused form leaves what its branch returned to the next one."""
    if isinstance(form, FusedByDepth):
        return not any(isinstance(part, Residual) for part in form.forms)
    return form is not None


def _under(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    size = len(prefix)
    return {name[size:]: value for name, value in named.items() if name.startswith(prefix)}


def _feed_forward(own: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(own[f"{part}.{kind}"] for part in ("hidden", "output") for kind in ("weight", "bias"))


def _attention(
    branch: CausalSelfAttention, own: Mapping[str, Tensor], u: Tensor, first: Tensor | None
) -> tuple[Any, ...]:
    """Return the arguments of `AttentionBranches` but the last two."""
    maps = tuple(
        own[f"{part}.{kind}"] for part in ("query_key_value", "output") for kind in ("weight", "bias")
    )
    mix = None if first is None else branch.value_mix
    return u, *maps, own.get("position_bias"), first, mix, branch.num_heads


def _fields(forecast: Forecast) -> tuple[Tensor, ...]:
    return tuple(each for each in forecast if each is not None)


def _forecast(fields: tuple[Tensor, ...]) -> Forecast:
    return Forecast(*fields)
