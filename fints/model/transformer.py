"""A causal transformer whose skip connections are one exchangeable object.

Shapes: B batch, T tokens, F features, D width, H horizons, L = 2 depth sublayers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fints.config import ModelConfig
from fints.model.branches import CausalSelfAttention, FeedForward
from fints.model.embedding import Embedding
from fints.model.heads import HEADS, Forecast
from fints.model.trace import Trace
from fints.residual import Branch, State, build_residual

__all__ = ["INITIALISERS", "Transformer", "build", "parameter_count"]

INITIALISERS = ("default", "xavier_uniform", "depth_scaled")
POSITIONS = ("relative", "learned")


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

    Attributes
    ----------
    activation_checkpointing : bool
        Whether a sublayer's activations are recomputed in the backward pass instead of kept. Does
        not change a number; off in a traced pass, which keeps all of them anyway.

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
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("positions", positions, POSITIONS),
            ("initialiser", initialiser, INITIALISERS),
            ("head", head, tuple(HEADS)),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r} is unknown. Choose one of {', '.join(known)}.")
        for name, size in (("context", context), ("depth", depth), ("num_horizons", num_horizons)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1; got {size}.")
        self.context = context
        self.activation_checkpointing = False
        self.embedding = Embedding(
            num_features, width, context=context, learned_positions=positions == "learned"
        )
        self.head = HEADS[head](width, num_horizons)
        self._draw_ends()
        hidden = max(1, round(feed_forward_ratio * width))
        self.branches = nn.ModuleList()
        # Drawn one by one, so that a shallower network has the first branches of a deeper one.
        for _ in range(depth):
            for fresh in (
                CausalSelfAttention(
                    width,
                    num_heads,
                    context=context,
                    dropout=dropout,
                    relative_positions=positions == "relative",
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
        if x.shape[-2] > self.context:
            raise ValueError(
                f"a window may have at most context = {self.context} tokens; got {x.shape[-2]}. "
                "Build the model with a larger context."
            )
        checkpointed = self.activation_checkpointing and trace is None
        step = self._checkpointed_step if checkpointed else self.residual.step
        state = self.residual.open(self.embedding(x))
        branch: Branch
        for layer, branch in enumerate(self.branches):
            if trace is not None:
                branch = trace.watch(self.residual, state, layer, branch)
            state = step(state, layer, branch)
        z = self.residual.close(state, len(self.branches))
        if trace is not None:
            trace.final = z
        return self.head(z)

    def _checkpointed_step(self, state: State, layer: int, branch: Branch) -> State:
        return checkpoint(lambda given: self.residual.step(given, layer, branch), state, use_reentrant=False)

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
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every accelerator too, and nothing would put those back.
        torch.random.default_generator.manual_seed(seed)
        return Transformer(
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
        )


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
