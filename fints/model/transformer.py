"""A causal transformer whose skip connections are one exchangeable object.

Shapes: B batch, T tokens, F features, D width, H horizons, L = 2 depth sublayers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fints.config import ModelConfig
from fints.model.branches import CausalSelfAttention, FeedForward
from fints.model.checkpointing import passed_through
from fints.model.compiled import CompiledPass
from fints.model.embedding import Embedding
from fints.model.heads import HEADS, Forecast
from fints.model.stacked import StackedPass
from fints.model.trace import Trace
from fints.residual import Branch, Residual, State, build_residual

__all__ = ["INITIALISERS", "Transformer", "build", "parameter_count"]

INITIALISERS = ("default", "xavier_uniform", "depth_scaled")
POSITIONS = ("relative", "learned")
VALUE_RESIDUALS = ("none", "fixed", "learned")

Alteration = Callable[[Residual[Any], Any, int, Branch], tuple[Any, Branch]]


class Transformer(nn.Module):
    """Attention and feed-forward branches, alternating, held together by one residual scheme.

    ``branches[2 b]`` is the attention and ``branches[2 b + 1]`` the feed-forward of block b. The
    embedding, the head and the branches are drawn before the scheme is built, so after the same
    seed they are equal under every scheme.

    Parameters
    ----------
    num_features : int
        F.
    context : int
        Largest T.
    residual : str
        A name of `fints.residual.RESIDUALS`.
    residual_options : mapping, optional
        Options of that scheme.
    width, depth, num_heads : int
        D, blocks, attention heads.
    feed_forward_ratio : float
        Hidden width of the feed-forward over D.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance inside a norm's root.
    activation : str
        "gelu", "relu" or "silu".
    dropout : float
        On the output of each branch.
    positions : str
        "relative" (a learned bias in attention) or "learned" (added to the tokens).
    initialiser : str
        Of the linear maps in the branches: "default", normal of variance 1 / (3 inputs), the scale
        of torch's own default (half and twice its spread learned simple signals no better in 300
        steps); "xavier_uniform", uniform of variance 2 / (inputs + outputs); "depth_scaled", the
        default with the output map of each branch divided by sqrt(2 depth). Whatever it is, biases
        and relative positions start at 0; the embedding gives tokens of unit variance; the head
        gives forecasts of standard deviation 0.1. The best constant forecast of a return is near 0:
        there the loss starts from the noise rather than above it, yet some gradient reaches the
        network in the first step, which a head of zeros would forbid.
    head : str
        "point", "gaussian" or "student_t".
    num_horizons : int
        H.
    value_residual : str
        Of every attention but the first: "none", "fixed" or "learned"; see `CausalSelfAttention`.

    Attributes
    ----------
    activation_checkpointing : bool
        Whether activations are recomputed in the backward pass, some blocks at a time, instead of
        kept (`fints.model.checkpointing`). Does not change a number; off in a traced pass, which keeps
        all of them anyway.
    alteration : callable or None
        Called as ``alteration(residual, state, layer, branch)`` before each sublayer; returns the state
        and the branch that it runs with (`fints.interventions`). Not for a compiled pass.

    Raises
    ------
    ValueError
        If a size or a name cannot be used.
    """

    def __init__(
        self,
        *,
        num_features: int,
        context: int,
        residual: str = "pre_norm",
        residual_options: Mapping[str, Any] | None = None,
        width: int = 32,
        depth: int = 4,
        num_heads: int = 4,
        feed_forward_ratio: float = 4.0,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        activation: str = "gelu",
        dropout: float = 0.0,
        positions: str = "relative",
        initialiser: str = "default",
        head: str = "point",
        num_horizons: int = 1,
        value_residual: str = "none",
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("positions", positions, POSITIONS),
            ("initialiser", initialiser, INITIALISERS),
            ("head", head, tuple(HEADS)),
            ("value_residual", value_residual, VALUE_RESIDUALS),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r} is unknown. Choose one of {', '.join(known)}.")
        for name, size in (("context", context), ("depth", depth), ("num_horizons", num_horizons)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1; got {size}.")
        self.context = context
        self.activation_checkpointing = False
        self.alteration: Alteration | None = None
        self.value_residual = value_residual
        self.embedding = Embedding(
            num_features, width, context=context, learned_positions=positions == "learned"
        )
        self.head = HEADS[head](width, num_horizons)
        self._draw_ends()
        hidden = max(1, round(feed_forward_ratio * width))
        self.branches = nn.ModuleList()
        # Drawn one by one, so that a shallower network has the first branches of a deeper one.
        for block in range(depth):
            for fresh in (
                CausalSelfAttention(
                    width,
                    num_heads,
                    context=context,
                    dropout=dropout,
                    relative_positions=positions == "relative",
                    value_residual="none" if block == 0 else value_residual,
                ),
                FeedForward(width, hidden, activation=activation, dropout=dropout),
            ):
                _draw_branch(fresh, initialiser, depth)
                self.branches.append(fresh)
        self.residual = build_residual(
            residual,
            residual_options,
            width=width,
            num_sublayers=len(self.branches),
            norm=norm,
            norm_eps=norm_eps,
        )
        self._check_initialiser(initialiser, residual)
        for layer, branch in enumerate(self.branches):
            self.residual.init_branch(branch, layer)

    def forward(self, x: Tensor, *, trace: Trace | None = None) -> Forecast:
        """Return a forecast for every token of x (B, T, F), from that token and its past alone.

        NaN in x means missing. T may be shorter than `context`.

        Raises
        ------
        ValueError
            If T is larger than `context`.
        """
        self.check_tokens(x)
        embedded = self.embedding(x)
        state = self.residual.open(embedded)
        number = len(self.branches)
        if trace is None:
            checkpointed = self.activation_checkpointing
            state = passed_through(self.sublayer, embedded, state, number, checkpointed=checkpointed)
        else:
            first_value: Tensor | None = None
            for layer in range(number):
                watch = partial(trace.watch, self.residual, state, layer)
                state, first_value = self.sublayer(state, layer, first_value, watch)
        z = self.residual.close(state, len(self.branches))
        if trace is not None:
            trace.final = z
        return self.head(z)

    def check_tokens(self, x: Tensor) -> None:
        """Refuse windows (B, T, F) of more than `context` tokens.

        Raises
        ------
        ValueError
            If T is larger than `context`.
        """
        if x.shape[-2] > self.context:
            raise ValueError(
                f"a window may have at most context = {self.context} tokens; got {x.shape[-2]}. "
                "Build the model with a larger context."
            )

    def compiled(self, backend: str | Callable[..., Any] | None = None) -> CompiledPass:
        """Return a fast pass that computes what `forward` does; see `fints.model.compiled.CompiledPass`.

        Raises
        ------
        ValueError
            If the network is altered: the fast pass would leave that out.
        """
        if self.alteration is not None:
            raise ValueError("an altered network has no compiled pass; call the network itself.")
        return CompiledPass(self, backend=backend)

    def stacked(self, networks: Sequence[Transformer], leaves: Mapping[str, Tensor]) -> StackedPass:
        """Return the pass of several networks of this structure at once; see `StackedPass`.

        Raises what it raises.
        """
        return StackedPass(networks, leaves)

    def sublayer(
        self,
        state: State,
        layer: int,
        first_value: Tensor | None,
        watch: Callable[[Branch], Branch] | None = None,
    ) -> tuple[State, Tensor | None]:
        """Return the state after sublayer `layer`, and the values of the first attention.

        `first_value` is None until that attention has run, and stays None where there is no value
        residual. `watch` may wrap the branch.
        """
        branch = self.branches[layer]
        call: Branch = branch
        own: list[Tensor] = []
        if self.value_residual != "none" and isinstance(branch, CausalSelfAttention):

            def attend(u: Tensor) -> Tensor:
                y, value = branch.attend(u, first_value)
                own.append(value)
                return y

            call = attend
        if self.alteration is not None:
            state, call = self.alteration(self.residual, state, layer, call)
        state = self.residual.step(state, layer, call if watch is None else watch(call))
        return state, own[0] if own and layer == 0 else first_value

    def branch_calls(self) -> list[Branch]:
        """Return the branches as one pass calls them: with a value residual they hand on the first values.

        For a loop of one's own over ``residual.step``; get a fresh list for every pass.
        """
        first: dict[str, Tensor] = {}

        def carrying(branch: nn.Module, layer: int) -> Branch:
            if self.value_residual == "none" or not isinstance(branch, CausalSelfAttention):
                return branch

            def attend(u: Tensor) -> Tensor:
                y, value = branch.attend(u, first.get("value"))
                if layer == 0:
                    first["value"] = value
                return y

            return attend

        return [carrying(branch, layer) for layer, branch in enumerate(self.branches)]

    @torch.no_grad()
    def calibrate(self, inputs: Tensor) -> None:
        """Let the residual scheme measure real windows (B, T, F) before the first step, where it asks to.

        Admin and frozen scales set their constants here; every other scheme does nothing. The pass is
        in training mode, so with dropout it draws from torch's global generators. `fints.training.fit`
        calls this; call it yourself in a loop of your own, once, after the weights are as they are to
        start and before the first step.
        """
        training = self.training
        self.train()
        try:
            self.residual.calibrate(self.embedding(inputs), self.branch_calls())
        finally:
            self.train(training)

    @property
    def calibrates(self) -> bool:
        """Whether `calibrate` sets anything under this network's residual scheme."""
        return any(self.residual.part(layer).calibrates for layer in range(len(self.branches)))

    @property
    def sees_later_tokens(self) -> bool:
        """Whether the residual scheme lets a token see later ones."""
        return any(self.residual.part(layer).sees_later_tokens for layer in range(len(self.branches)))

    def _check_initialiser(self, initialiser: str, residual: str) -> None:
        parts = {self.residual.part(layer) for layer in range(len(self.branches))}
        fixing = sorted(type(part).__name__ for part in parts if part.own_branch_scale)
        if initialiser == "depth_scaled" and fixing:
            raise ValueError(
                f'initialiser = "depth_scaled" cannot be used with {residual}: {", ".join(fixing)} fixes the '
                'scale of fresh branches itself. Choose "default" or "xavier_uniform".'
            )

    def _draw_ends(self) -> None:
        """Draw the embedding and the head from the global generator."""
        # Of the inputs one half are indicators, mostly 0: the features alone give unit variance.
        nn.init.normal_(self.embedding.linear.weight, std=(self.embedding.linear.in_features / 2) ** -0.5)
        nn.init.zeros_(self.embedding.linear.bias)
        if self.embedding.positions is not None:
            nn.init.normal_(self.embedding.positions, std=0.1)
        nn.init.normal_(self.head.linear.weight, std=0.1 * self.head.linear.in_features**-0.5)
        nn.init.zeros_(self.head.linear.bias)


def build(
    model: ModelConfig,
    *,
    num_features: int,
    context: int,
    num_horizons: int = 1,
    seed: int,
) -> Transformer:
    """Build the network of a configuration, drawn from `seed`; the global generator is left as it was.

    Networks of the same seed and sizes have the same embedding, head and branches under every
    residual scheme, and a shallower one has the first branches of a deeper one (up to the depth
    scaling of "depth_scaled").

    Raises
    ------
    ValueError
        If a size or a name cannot be used, or every token is to be forecast from under a scheme whose
        tokens see later ones.
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every accelerator too, and nothing would put those back.
        torch.random.default_generator.manual_seed(seed)
        network = Transformer(
            num_features=num_features,
            context=context,
            residual=model.residual,
            residual_options=model.residual_options,
            width=model.width,
            depth=model.depth,
            num_heads=model.num_heads,
            feed_forward_ratio=model.feed_forward_ratio,
            norm=model.norm,
            norm_eps=model.norm_eps,
            activation=model.activation,
            dropout=model.dropout,
            positions=model.positions,
            initialiser=model.initialiser,
            head=model.head,
            num_horizons=num_horizons,
            value_residual=model.value_residual,
        )
    if model.forecast_from == "every_token" and network.sees_later_tokens:
        raise ValueError(
            f'{model.residual} with over = "window" lets every token see the scale of later ones, so '
            'model.forecast_from must be "last_token"; got "every_token". Or choose over = "past".'
        )
    return network


def parameter_count(model: ModelConfig, *, num_features: int, context: int, num_horizons: int = 1) -> int:
    """Return how many trainable numbers the network of a configuration has, without allocating them."""
    with torch.device("meta"):
        network = build(model, num_features=num_features, context=context, num_horizons=num_horizons, seed=0)
    return sum(parameter.numel() for parameter in network.parameters())


def _draw_branch(branch: CausalSelfAttention | FeedForward, initialiser: str, depth: int) -> None:
    """Draw the linear maps of a branch from the global generator."""
    for linear in branch.children():
        if isinstance(linear, nn.Linear):
            shrink = (2 * depth) ** -0.5 if initialiser == "depth_scaled" and linear is branch.output else 1.0
            if initialiser == "xavier_uniform":
                nn.init.xavier_uniform_(linear.weight)
            else:
                nn.init.normal_(linear.weight, std=shrink * (3 * linear.in_features) ** -0.5)
            nn.init.zeros_(linear.bias)
