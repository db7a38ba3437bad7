"""The two branches of a block, with neither norm nor skip: those belong to the residual scheme.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "CausalSelfAttention", "FeedForward"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}


class CausalSelfAttention(nn.Module):
    """Multi-head self-attention in which a token sees itself and its past.

    ::

        y_i = W_o concat_heads sum_{j <= i} softmax_j(q_i k_j / sqrt(D / num_heads) + b[i - j]) v_j

    The learned bias b has one number a head and distance; it starts at 0, where every distance
    counts alike. Dropout acts on y only, so that every residual scheme drops the same thing.

    With a value residual the values are mixed with those of the network's first attention, head by
    head and token by token, after the projection and its bias::

        v_j <- lambda_1 v_j^first + lambda_2 v_j

    lambda is `value_mix`, (1/2, 1/2) at the start, as in the authors' code; the attention that is
    itself the first has none.

    Parameters
    ----------
    width : int
        D, a multiple of `num_heads`.
    num_heads : int
        Attention heads.
    context : int
        Largest T.
    dropout : float
        Share of entries of the output set to zero in training.
    relative_positions : bool
        Whether the scores have the bias b.
    value_residual : str
        "none", "fixed" (lambda is a constant) or "learned".

    Notes
    -----
    Source of the value residual: Zhou et al. 2024, arXiv 2410.17897. Departures: none.
    """

    value_mix: Tensor | None
    future: Tensor
    no_bias: Tensor

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        context: int,
        dropout: float,
        relative_positions: bool,
        value_residual: str = "none",
    ) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width must be a multiple of num_heads; got {width} and {num_heads}.")
        self.num_heads = num_heads
        self.scale = (width // num_heads) ** -0.5
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        # By distance, longest first: the row of the last query is then a plain slice.
        self.position_bias = nn.Parameter(torch.zeros(num_heads, context)) if relative_positions else None
        if value_residual == "learned":
            self.value_mix = nn.Parameter(torch.full((2,), 0.5))
        else:
            halves = None if value_residual == "none" else torch.full((2,), 0.5)
            self.register_buffer("value_mix", halves, persistent=False)
        self.register_buffer("no_bias", torch.zeros(num_heads, context), persistent=False)
        self.register_buffer("future", torch.full((num_heads, context - 1), -torch.inf), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, T, D) of x (B, T, D)."""
        return self.attend(x, None)[0]

    def attend(self, x: Tensor, first_value: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output (B, T, D) and the own values (B heads, T, D / heads), before any mix.

        Raises
        ------
        ValueError
            If the values are to be mixed and `first_value`, those of the first attention, is None.
        """
        batch, tokens, width = x.shape
        # Written out: at B 64, T 24, 4 heads of 8, forward and backward on one CPU thread, batched
        # products took 1.5 ms and scaled_dot_product_attention with a trained bias 2.2 ms.
        qkv = self.query_key_value(x).view(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.reshape(3, batch * self.num_heads, tokens, -1).unbind(0)
        mixed_value = self._with_first(value, first_value)
        scores = torch.bmm(query * self.scale, key.mT).view(batch, self.num_heads, tokens, tokens)
        shares = (scores + self._bias(tokens)).softmax(dim=-1).view(-1, tokens, tokens)
        mixed = torch.bmm(shares.to(value.dtype), mixed_value).view(batch, self.num_heads, tokens, -1)
        return self.dropout(self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))), value

    def written_weights(self) -> list[Tensor]:
        """Return the weights that the output is linear in: of the values and of the output map."""
        return [self.query_key_value.weight.chunk(3)[2], self.output.weight]

    def _with_first(self, value: Tensor, first_value: Tensor | None) -> Tensor:
        if self.value_mix is None:
            return value
        if first_value is None:
            raise ValueError(
                "a value residual needs the values of the first attention; got None. Run the network, or "
                "its branches through Transformer.branch_calls()."
            )
        return self.value_mix[0] * first_value + self.value_mix[1] * value

    def _bias(self, tokens: int) -> Tensor:
        """Return b[i - j] for j <= i, else -inf, as (num_heads, tokens, tokens)."""
        table = self.no_bias if self.position_bias is None else self.position_bias
        # Row i of the matrix is a window of (longest distance, ..., 0, -inf, ..., -inf).
        line = torch.cat([table[:, -tokens:], self.future[:, : tokens - 1]], dim=-1)
        return line.unfold(-1, tokens, 1).flip(-2)


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, token by token.

    ::

        y = W_2 activation(W_1 x + b_1) + b_2

    Parameters
    ----------
    width : int
        D.
    hidden : int
        Rows of W_1.
    activation : str
        "gelu", "relu" or "silu".
    dropout : float
        Share of entries of the output set to zero in training.
    """

    def __init__(self, width: int, hidden: int, *, activation: str, dropout: float) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}. Choose one of {', '.join(ACTIVATIONS)}.")
        self.hidden = nn.Linear(width, hidden)
        self.activation = ACTIVATIONS[activation]()
        self.output = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, T, D) of x (B, T, D)."""
        return self.dropout(self.output(self.activation(self.hidden(x))))

    def written_weights(self) -> list[Tensor]:
        """Return the weights of both maps."""
        return [self.hidden.weight, self.output.weight]
