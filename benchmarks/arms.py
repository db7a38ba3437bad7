"""What `schemes.py`, `gpu.py` and `memory.py` measure: networks of equal sizes, a training step of each.

Shapes: B batch, T tokens, F features, D width, n streams.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fints.model import Transformer
from fints.residual import RESIDUALS, options_of

__all__ = ["PACKAGES", "Arm", "Sizes", "arms_of", "step_of"]

PACKAGES = ("hyper-connections", "x-transformers")
FEATURES = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes that all arms share; a head has 16 numbers, the feed-forward four times the width."""

    depth: int = 16
    width: int = 64
    streams: int = 4
    batch: int = 64
    tokens: int = 32

    @property
    def heads(self) -> int:
        """Return the number of heads."""
        return max(1, self.width // 16)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Give a parser one option a size."""
        for field in dataclasses.fields(Sizes):
            parser.add_argument(f"--{field.name}", type=int, default=field.default)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Sizes:
        """Return the sizes that a parser read."""
        return cls(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Arm:
    """A row of the table.

    `build` draws a network that maps windows (B, T, F) to (B, T, 1), or to a forecast.
    """

    name: str
    build: Callable[[Sizes], nn.Module]
    compiled: bool = False


def arms_of(names: list[str], *, packages: bool) -> list[Arm]:
    """Return two arms a scheme, plain and compiled, and those of the other libraries.

    Raises
    ------
    ValueError
        If a name is no scheme's.
    """
    arms = []
    for name in names:
        if name not in RESIDUALS:
            raise ValueError(f"unknown residual scheme {name!r}. Known: {', '.join(RESIDUALS)}.")
        for compiled in (False, True):
            arms.append(Arm(f"{name}, {'compiled' if compiled else 'plain'}", _scheme(name), compiled))
    arms.append(Arm("torch.nn.TransformerEncoder", _torch_encoder))
    if packages:
        arms.append(Arm("hyper-connections (package)", _package_streams))
        arms.append(Arm("x-transformers, pre-norm", _x_transformers))
    return arms


def step_of(
    arm: Arm, sizes: Sizes, *, device: str = "cpu", precision: str = "float32", checkpointing: bool = False
) -> tuple[nn.Module, Callable[[], None]]:
    """Return a drawn network and one training step of it: forward, backward, AdamW."""
    torch.manual_seed(0)
    network = arm.build(sizes).to(device)
    if isinstance(network, Transformer):
        network.activation_checkpointing = checkpointing
    forward: Callable[[Tensor], Any] = network
    if arm.compiled:
        assert isinstance(network, Transformer)
        forward = network.compiled()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    x = torch.randn(sizes.batch, sizes.tokens, FEATURES, device=device)
    target = torch.randn(sizes.batch, sizes.tokens, 1, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            forecast = forward(x)
        mean = forecast if isinstance(forecast, Tensor) else forecast.mean
        (mean.float() - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return network, step


def _scheme(name: str) -> Callable[[Sizes], nn.Module]:
    def build(sizes: Sizes) -> nn.Module:
        options = {"num_streams": sizes.streams} if "num_streams" in options_of(name) else {}
        if name == "by_depth":
            options = {}
        return Transformer(
            num_features=FEATURES,
            context=sizes.tokens,
            residual=name,
            residual_options=options,
            width=sizes.width,
            depth=sizes.depth,
            num_heads=sizes.heads,
        )

    return build


class _Ends(nn.Module):
    """A linear map in, a stack, a linear map out."""

    def __init__(self, sizes: Sizes, body: nn.Module) -> None:
        super().__init__()
        self.into, self.body, self.out = nn.Linear(FEATURES, sizes.width), body, nn.Linear(sizes.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number a token."""
        result: Tensor = self.out(self.body(self.into(x)))
        return result


class _Causal(nn.Module):
    def __init__(self, body: nn.Module, tokens: int) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.body(x, mask=self.mask, is_causal=True)
        return result


def _torch_encoder(sizes: Sizes) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        sizes.width,
        sizes.heads,
        4 * sizes.width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    norm = nn.LayerNorm(sizes.width)
    encoder = nn.TransformerEncoder(layer, sizes.depth, norm=norm, enable_nested_tensor=False)
    return _Ends(sizes, _Causal(encoder, sizes.tokens))


class _Streams(nn.Module):
    """Our branches in the package's own wrapper, dynamic Hyper-Connections."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        package = importlib.import_module("hyper_connections")
        ours = _scheme("pre_norm")(sizes)
        assert isinstance(ours, Transformer)
        make, self.expand, self.reduce = package.HyperConnections.get_init_and_expand_reduce_stream_functions(
            sizes.streams
        )
        self.layers = nn.ModuleList(
            make(dim=sizes.width, branch=nn.Sequential(nn.LayerNorm(sizes.width), branch), layer_index=layer)
            for layer, branch in enumerate(ours.branches)
        )
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        streams = self.expand(x)
        for layer in self.layers:
            streams = layer(streams)
        result: Tensor = self.norm(self.reduce(streams))
        return result


def _package_streams(sizes: Sizes) -> nn.Module:
    return _Ends(sizes, _Streams(sizes))


def _x_transformers(sizes: Sizes) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module("x_transformers")
        body = package.Decoder(
            dim=sizes.width, depth=sizes.depth, heads=sizes.heads, attn_dim_head=16, rel_pos_bias=False
        )
    return _Ends(sizes, body)
