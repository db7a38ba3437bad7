"""One experiment as a tree of frozen dataclasses.

Every field is JSON-able, so an experiment travels in a file, a tag or a database, and its
fingerprint is the hash of that JSON. This module imports the standard library only.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DataConfig",
    "Experiment",
    "ModelConfig",
    "TrainingConfig",
    "fingerprint",
    "override",
    "part_to_dict",
]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# A field that came after the first release is left out of the JSON while it has its default, so an
# experiment from before it keeps its fingerprint, and its fits and files stay those of the same experiment.
ADDED_LATER = {"left out at its default": True}

DEFAULT_FEATURES = (
    "return_1",
    "return_5",
    "return_21",
    "log_volatility_21",
    "momentum_252_21",
    "rank_return_1",
    "rank_return_21",
)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What a network sees and what it forecasts.

    `features` are recipe names of `fints.data.features` or numeric columns of the panel;
    `target` is a name of `fints.data.targets`; `horizon` and `context` count trading days.
    A window with less than `min_valid` of its days observed gives no forecast. Scaled features
    are clipped to +-`clip` training standard deviations. Features in `unscaled` enter as they are (but for
    the clip). Those in `window_scaled` are then divided in each window by their root mean square over its
    days so far: what is left of an input whose scale is taken away.
    """

    features: tuple[str, ...] = DEFAULT_FEATURES
    target: str = "volatility_scaled"
    horizon: int = 1
    context: int = 24
    min_valid: float = 0.5
    clip: float = 10.0
    unscaled: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)
    window_scaled: tuple[str, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        _require(len(self.features) > 0, "data.features", self.features, "name at least one feature")
        _require(
            len(set(self.features)) == len(self.features),
            "data.features",
            self.features,
            "name each feature once",
        )
        _at_least(self, "data", horizon=1, context=1)
        _require(0 < self.min_valid <= 1, "data.min_valid", self.min_valid, "choose one in (0, 1]")
        _require(self.clip > 0, "data.clip", self.clip, "choose one above 0")
        for name in ("unscaled", "window_scaled"):
            own = getattr(self, name)
            _require(set(own) <= set(self.features), f"data.{name}", own, "name features of data.features")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A causal transformer: `depth` blocks of width `width` under one residual scheme.

    `forecast_from` is "last_token" (one forecast a window) or "every_token" (one a day of the
    window, all trained). `head` is "point", "gaussian" or "student_t". `value_residual` gives every
    attention but the first a share of the first one's values: "none", "fixed" (one half) or
    "learned" (two numbers a block).
    """

    residual: str = "pre_norm"
    residual_options: dict[str, Any] = field(default_factory=dict)
    width: int = 32
    depth: int = 4
    num_heads: int = 4
    feed_forward_ratio: float = 4.0
    norm: str = "layer_norm"
    norm_eps: float = 1e-5
    activation: str = "gelu"
    dropout: float = 0.0
    positions: str = "relative"
    initialiser: str = "default"
    head: str = "point"
    forecast_from: str = "every_token"
    value_residual: str = field(default="none", metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        _at_least(self, "model", width=1, depth=1, num_heads=1)
        _require(
            self.width % self.num_heads == 0,
            "model.num_heads",
            self.num_heads,
            f"choose a divisor of model.width = {self.width}",
        )
        _require(
            self.feed_forward_ratio > 0,
            "model.feed_forward_ratio",
            self.feed_forward_ratio,
            "choose one above 0",
        )
        _require(self.norm_eps > 0, "model.norm_eps", self.norm_eps, "choose one above 0")
        _require(0 <= self.dropout < 1, "model.dropout", self.dropout, "choose one in [0, 1)")
        _one_of("model.norm", self.norm, ("layer_norm", "rms_norm"))
        _one_of("model.activation", self.activation, ("gelu", "relu", "silu"))
        _one_of("model.positions", self.positions, ("relative", "learned"))
        _one_of("model.initialiser", self.initialiser, ("default", "xavier_uniform", "depth_scaled"))
        _one_of("model.head", self.head, ("point", "gaussian", "student_t"))
        _one_of("model.forecast_from", self.forecast_from, ("last_token", "every_token"))
        _one_of("model.value_residual", self.value_residual, ("none", "fixed", "learned"))


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """One training: AdamW, linear warm-up, cosine decay, clipping by global norm.

    `steps`, `warmup_steps`, `evaluate_every` and `profile_every` count optimiser steps; `patience` counts
    evaluations without a better validation loss (0: never stop early); `profile_every` 0 profiles only
    after the last step; the steps of `profile_at` are profiled besides. `optimizer` is "adamw" or "sgd",
    whose momentum is the first of `betas`. `interventions` holds the options of each intervention by its
    name in `fints.interventions.INTERVENTIONS`, such as ``{"gradient_equaliser": {"dose": 1.0}}``. A
    study makes up to `vectorise` fits of an arm at once, as one network with stacked parameters, where
    that can be done.
    """

    loss: str = "mse"
    huber_delta: float = 1.0
    learning_rate: float = 1e-3
    final_learning_rate_share: float = 0.0
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    steps: int = 1000
    warmup_steps: int = 50
    batch_size: int = 64
    clip_norm: float = 1.0
    evaluate_every: int = 50
    patience: int = 0
    keep: str = "best"
    profile_every: int = 0
    precision: str = "float32"
    compile: bool = False
    activation_checkpointing: bool = False
    device: str = "auto"
    threads: int = 1
    optimizer: str = field(default="adamw", metadata=ADDED_LATER)
    interventions: dict[str, Any] = field(default_factory=dict, metadata=ADDED_LATER)
    vectorise: int = field(default=1, metadata=ADDED_LATER)
    profile_at: tuple[int, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        _at_least(
            self,
            "training",
            steps=1,
            warmup_steps=0,
            batch_size=1,
            evaluate_every=1,
            patience=0,
            profile_every=0,
            threads=1,
            vectorise=1,
        )
        _require(
            all(1 <= step <= self.steps for step in self.profile_at),
            "training.profile_at",
            self.profile_at,
            f"choose steps from 1 to training.steps = {self.steps}",
        )
        _require(
            self.warmup_steps < self.steps,
            "training.warmup_steps",
            self.warmup_steps,
            f"choose one below training.steps = {self.steps}",
        )
        for name in ("learning_rate", "clip_norm", "huber_delta"):
            _require(getattr(self, name) > 0, f"training.{name}", getattr(self, name), "choose one above 0")
        _require(
            self.weight_decay >= 0, "training.weight_decay", self.weight_decay, "choose one of at least 0"
        )
        share = self.final_learning_rate_share
        _require(0 <= share <= 1, "training.final_learning_rate_share", share, "choose one in [0, 1]")
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "training.betas",
            self.betas,
            "give two numbers in [0, 1)",
        )
        _one_of("training.loss", self.loss, ("mse", "huber", "nll"))
        _one_of("training.keep", self.keep, ("best", "last"))
        _one_of("training.precision", self.precision, ("float32", "bfloat16"))
        _one_of("training.optimizer", self.optimizer, ("adamw", "sgd"))

    def profiled(self, number: int) -> bool:
        """Tell whether the network is profiled after `number` steps; after the last it always is."""
        return (self.profile_every > 0 and number % self.profile_every == 0) or number in self.profile_at


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Data, model and training of one fit; with a fold and a seed it determines every number."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        distributional = self.model.head != "point"
        _require(
            distributional == (self.training.loss == "nll"),
            "training.loss",
            self.training.loss,
            f'with model.head = "{self.model.head}" choose '
            + ('"nll"' if distributional else '"mse" or "huber"'),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as JSON-able dictionaries and lists.

        A field that was added later is left out while it has its default.
        """
        return {part.name: part_to_dict(getattr(self, part.name)) for part in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Experiment:
        """Rebuild an experiment from `to_dict`.

        Raises
        ------
        ValueError
            If a field is unknown, with the known ones listed.
        """
        return _build(cls, tree, "")


def part_to_dict(part: DataConfig | ModelConfig | TrainingConfig) -> dict[str, Any]:
    """Return one part of an experiment as JSON has it, less the later fields that have their default."""
    tree = dataclasses.asdict(part)
    for leaf in dataclasses.fields(part):
        if leaf.metadata == ADDED_LATER:
            factory = leaf.default_factory
            default = leaf.default if factory is dataclasses.MISSING else factory()
            if tree[leaf.name] == default:
                del tree[leaf.name]
    plain: dict[str, Any] = json.loads(json.dumps(tree))
    return plain


def override(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return a copy with dotted fields replaced, e.g. ``{"model.depth": 8}``.

    All changes are applied before the copy is checked, so two fields that must agree can change
    together. ``model.residual_options.NAME`` sets one option of the residual scheme,
    ``training.interventions.NAME`` the options of one intervention.

    Raises
    ------
    ValueError
        If a field is unknown (the known ones are listed) or a value has the wrong type.
    """
    tree = experiment.to_dict()
    for dotted, value in changes.items():
        *parents, leaf = dotted.split(".")
        node, kind, free = tree, Experiment, False
        for depth, name in enumerate(parents):
            prefix = ".".join(parents[:depth])
            if not free:
                _known(kind, name, prefix)
                kind = _annotations(kind)[name]
                free = not dataclasses.is_dataclass(kind)
            if free and typing.get_origin(kind) is not dict:
                raise ValueError(
                    f"{'.'.join(parents[: depth + 1])} has no fields; got {dotted}. Set it as a whole."
                )
            # A table that came later is left out of the tree while it is empty.
            node = node.setdefault(name, {}) if free else node[name]
        if not free:
            _known(kind, leaf, ".".join(parents))
        node[leaf] = _plain(value, dotted)
    return Experiment.from_dict(tree)


def fingerprint(*parts: Any) -> str:
    """Return 16 hex digits of the SHA-256 of the canonical JSON of `parts`.

    Raises
    ------
    ValueError
        If a part holds a NaN or an infinity, which JSON cannot carry.
    """
    plain = [part.to_dict() if isinstance(part, Experiment) else part for part in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any, path: str) -> Json:
    """Return a value as JSON has it; a number of numpy's counts as the number it holds."""
    if isinstance(value, list | tuple):
        return [_plain(item, path) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item, path) for name, item in value.items()}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise ValueError(f"{path} must be a number, a text, a list or a table; got {type(value).__name__}.")


def _annotations(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _known(kind: type, name: str, prefix: str) -> None:
    names = [f.name for f in dataclasses.fields(kind)]
    if name not in names:
        path = f"{prefix}.{name}" if prefix else name
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {(prefix + '.' if prefix else '') + near[0]}?" if near else ""
        raise ValueError(f"unknown field {path}.{hint} Known fields: {', '.join(names)}.")


def _build(kind: type, tree: Mapping[str, Any], prefix: str) -> Any:
    if not isinstance(tree, Mapping):
        raise ValueError(f"{prefix or 'experiment'} must be a table of fields; got {tree!r}.")
    hints = _annotations(kind)
    values = {}
    for name, value in tree.items():
        _known(kind, name, prefix)
        path = f"{prefix}.{name}" if prefix else name
        values[name] = (
            _build(hints[name], value, path)
            if dataclasses.is_dataclass(hints[name])
            else _cast(hints[name], value, path)
        )
    return kind(**values)


def _cast(hint: Any, value: Any, path: str) -> Any:
    """Accept exactly what the annotation says; an int stands for a float, a list for a tuple."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        if isinstance(value, list | tuple):
            return tuple(_cast(inner, item, path) for item in value)
    elif origin is dict:
        if isinstance(value, Mapping):
            return json.loads(json.dumps(dict(value)))
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    wanted = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text"}
    kind = wanted.get(hint, "a list" if origin is tuple else "a table")
    raise ValueError(f"{path} must be {kind}; got {value!r}.")


def _require(holds: bool, path: str, value: Any, remedy: str) -> None:
    if not holds:
        raise ValueError(f"{path} = {value!r} cannot be used: {remedy}.")


def _at_least(config: Any, prefix: str, **bounds: int) -> None:
    for name, bound in bounds.items():
        _require(
            getattr(config, name) >= bound,
            f"{prefix}.{name}",
            getattr(config, name),
            f"choose at least {bound}",
        )


def _one_of(path: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        near = difflib.get_close_matches(str(value), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{path} = {value!r} is unknown: {hint}Choose one of {', '.join(names)}.")
