"""Different schemes at different depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fints.residual.base import Branch, Mixing, Residual, State, check_sizes, make_norm, norm_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ByDepth"]

_FORM = 'Write [name, blocks] or [name, blocks, {option: value}], e.g. [["pre_norm", 8], ["deep_norm", 8]].'


class _Segment(NamedTuple):
    name: str
    num_sublayers: int
    options: Mapping[str, Any]


class ByDepth(Residual[State]):
    """Segments of blocks, each under a scheme of its own.

    Within a segment its scheme's equation holds. Where segment a ends and b begins::

        state <- open_b(merge_a(state))             or, where b norms its trunk and a does not,
        state <- open_b(N_ab(merge_a(state)))
        read-out: that of the last segment

    Symbols: the schemes are ``parts``, N_ab ``boundary_norms[a]``. `merge` is what each scheme says it is:
    the mean of streams (a sum would hand on n times the trunk), the number of sources times the
    weighted mean for Attention Residuals, by a query of the segment's own. So any sequence of schemes
    that start as Pre-Norm starts as Pre-Norm. A segment but the last has no final norm.

    What depends on depth counts as follows: home streams of Hyper-Connections and the factor of
    LayerNorm-Scaling from the bottom of the network, the constants of DeepNorm and the blocks of
    DenseFormer within the segment. The state that enters sublayer k belongs to the segment of k, so the
    last step of a segment returns what the next one has opened.

    Parameters
    ----------
    width : int
        D.
    num_sublayers : int
        L, two a block.
    norm : str
        "layer_norm" or "rms_norm".
    norm_eps : float
        Added to the variance (or mean square) inside the norm's root.
    first_layer : int
        Global index of the first sublayer.
    segments : list, optional
        From the bottom, ``[name, blocks]`` or ``[name, blocks, options]`` each; the blocks must add up to
        L / 2. None: Pre-Norm in the lower half, dynamic Hyper-Connections in the upper one.

    Raises
    ------
    ValueError
        If the segments cannot be used; the message names the segment.

    Notes
    -----
    Source: that of each part; the boundaries are ours. For Attention Residuals, whose paper has no
    boundary inside, the hand-over keeps the trunk of Pre-Norm at the start.
    Departures: inner final norms are left out; those of each part.
    Parameters per sublayer beyond the branch's norm: those of each part, and a norm at each boundary
    from a trunk that is not normed to one that is.
    """

    paper: ClassVar[str] = "mixtures by depth; the papers are those of the parts"
    equation: ClassVar[str] = "each part's, e.g. h <- h + F(N(h)) below; between parts open(merge(state))"
    equals_pre_norm_at_start: ClassVar[bool] = True
    normalises_trunk: ClassVar[bool] = False
    parameter_formula: ClassVar[str] = "those of the parts"

    def __init__(
        self,
        width: int,
        num_sublayers: int,
        *,
        norm: str = "layer_norm",
        norm_eps: float = 1e-5,
        first_layer: int = 0,
        segments: list[Any] | None = None,
    ) -> None:
        # The table holds this class too, so it is there only once this module is.
        from fints.residual import build_residual

        super().__init__()
        check_sizes(width, num_sublayers, first_layer)
        self.parts = nn.ModuleList()
        self.starts: list[int] = []
        start = 0
        for i, segment in enumerate(_parsed(segments, num_sublayers)):
            try:
                built = build_residual(
                    segment.name,
                    segment.options,
                    width=width,
                    num_sublayers=segment.num_sublayers,
                    norm=norm,
                    norm_eps=norm_eps,
                    first_layer=first_layer + start,
                )
            except ValueError as error:
                raise ValueError(f"segment {i} ({segment.name}): {error}") from None
            self.parts.append(built)
            self.starts.append(start)
            start += segment.num_sublayers
        for part in self.parts[:-1]:
            if _has_final_norm(part):
                part.final_norm = nn.Identity()
        self.boundary_norms = nn.ModuleList(
            make_norm(norm, width, norm_eps)
            if self._part(i + 1).normalises_trunk and not self._part(i).normalises_trunk
            else nn.Identity()
            for i in range(len(self.parts) - 1)
        )

    @staticmethod
    def extra_parameters(
        width: int, num_sublayers: int, *, norm: str, segments: list[Any] | None = None
    ) -> int:
        """Return the sum of the parts, less inner final norms, plus norms at boundaries."""
        from fints.residual import RESIDUALS, build_residual

        a_norm = norm_parameters(norm, width)
        parsed = _parsed(segments, num_sublayers)
        total = -a_norm
        for i, segment in enumerate(parsed):
            scheme = RESIDUALS[segment.name]
            total += a_norm + scheme.extra_parameters(
                width, segment.num_sublayers, norm=norm, **segment.options
            )
            if i + 1 < len(parsed):
                empty = build_residual(segment.name, segment.options, width=width, num_sublayers=0, norm=norm)
                if _has_final_norm(empty):
                    # That of a part without norms is an identity, which has none.
                    total -= sum(p.numel() for p in empty.get_submodule("final_norm").parameters())
                following = RESIDUALS[parsed[i + 1].name]
                total += a_norm * (following.normalises_trunk and not scheme.normalises_trunk)
        return total

    def open(self, x: Tensor) -> State:
        """Return what the first segment opens."""
        state: State = self._part(0).open(x)
        return state

    def read(self, state: State, layer: int) -> Tensor:
        """Return what the segment of `layer` reads."""
        i, local = self._locate(layer)
        return self._part(i).read(state, local)

    def step(self, state: State, layer: int, branch: Branch) -> State:
        """Return the segment's state after `layer`, or what the next segment opens after its last one."""
        i, local = self._locate(layer)
        after: State = self._part(i).step(state, local, branch)
        return self._opened(i + 1, after) if self._ends(i, layer) else after

    def merge(self, state: State, layer: int) -> Tensor:
        """Return what the segment of `layer` merges; after the last sublayer, the last segment."""
        i, local = self._locate(layer)
        return self._part(i).merge(state, local)

    def close(self, state: State, layer: int) -> Tensor:
        """Return the read-out of the segment of `layer`."""
        i, local = self._locate(layer)
        return self._part(i).close(state, local)

    def no_decay(self) -> set[str]:
        """Return what the parts name, and the norms at boundaries."""
        of_parts = {f"parts.{i}.{name}" for i in range(len(self.parts)) for name in self._part(i).no_decay()}
        return of_parts | {f"boundary_norms.{name}" for name, _ in self.boundary_norms.named_parameters()}

    def weights(self, state: State, layer: int) -> dict[str, Tensor]:
        """Return the weights of the segment of `layer`."""
        i, local = self._locate(layer)
        return self._part(i).weights(state, local)

    def mixing(self, state: State, layer: int) -> Mixing | None:
        """Return the step of the segment of `layer`, with the hand-over where it is the last one.

        None where the step is not linear at the weights of `state`: in a part of that kind, at a norm
        between parts, into a part that rescales what it opens, and where the weights of `merge` depend on
        the sublayer's output (attention over depth below another part).
        """
        i, local = self._locate(layer)
        part = self._part(i)
        mixing = part.mixing(state, local)
        if mixing is None or not self._ends(i, layer):
            return mixing
        following = self._part(i + 1)
        if not isinstance(self.boundary_norms[i], nn.Identity):
            return None
        merging = part.merging(part.step(state, local, torch.zeros_like), local + 1)
        other = part.merging(part.step(state, local, torch.ones_like), local + 1)
        if merging is None or other is None or not torch.equal(merging, other):
            return None
        h = part.merge(state, local)
        opened = following.open(h)
        first = following.mixing(opened, 0)
        # A part that rescales what it is given is not linear there.
        if first is None or not torch.allclose(following.merge(opened, 0), h):
            return None
        # Every slot of a fresh state holds what was merged.
        carry = (mixing.carry * merging.unsqueeze(-2)).sum(-1, keepdim=True)
        write = (mixing.write * merging).sum(-1, keepdim=True)
        slots = first.read.shape[-1]
        return Mixing(
            mixing.read, carry.expand(*carry.shape[:-1], slots), write.expand(*write.shape[:-1], slots)
        )

    def merging(self, state: State, layer: int) -> Tensor | None:
        """Return the weights of the segment of `layer`."""
        i, local = self._locate(layer)
        return self._part(i).merging(state, local)

    def part(self, layer: int) -> Residual[Any]:
        """Return the scheme of the segment of `layer`."""
        i, local = self._locate(layer)
        return self._part(i).part(local)

    def init_branch(self, branch: nn.Module, layer: int) -> None:
        """Rescale as the segment of `layer` says."""
        i, local = self._locate(layer)
        self._part(i).init_branch(branch, local)

    def calibrate(self, x: Tensor, branches: Sequence[Branch]) -> None:
        """Calibrate each part on what enters it, from the bottom, once those below it are."""
        state = self.open(x)
        for i, start in enumerate(self.starts):
            own = branches[start : self._stop(i, len(branches))]
            part = self._part(i)
            h = part.merge(state, 0)
            part.calibrate(h, own)
            # Opened again, now that its constants are set; the pass gives the next part its data.
            state = part.open(h)
            for layer, branch in enumerate(own, start):
                state = self.step(state, layer, branch)

    def _part(self, i: int) -> Residual[Any]:
        part = self.parts[i]
        assert isinstance(part, Residual)
        return part

    def _locate(self, layer: int) -> tuple[int, int]:
        """Return the segment of `layer` and its index there; past the end it is the last segment."""
        # Not by bisect, which torch.compile cannot trace.
        i = sum(start <= layer for start in self.starts) - 1
        return i, layer - self.starts[i]

    def _ends(self, i: int, layer: int) -> bool:
        return i + 1 < len(self.parts) and layer + 1 == self.starts[i + 1]

    def _stop(self, i: int, last: int) -> int:
        return self.starts[i + 1] if i + 1 < len(self.starts) else last

    def _opened(self, i: int, after: State) -> State:
        """Return what segment i opens from the last state of the one below it."""
        below = self._part(i - 1)
        h = self.boundary_norms[i - 1](below.merge(after, self.starts[i] - self.starts[i - 1]))
        state: State = self._part(i).open(h)
        return state


def _has_final_norm(part: nn.Module) -> bool:
    return "final_norm" in dict(part.named_children())


def _parsed(segments: list[Any] | None, num_sublayers: int) -> list[_Segment]:
    """Return the segments with their sublayers.

    Raises
    ------
    ValueError
        If a segment has another form than [name, blocks] or [name, blocks, options], is a mixture
        itself, or the blocks do not add up.
    """
    if segments is None:
        lower = 2 * (num_sublayers // 4)
        upper = _Segment("dynamic_hyper_connections", num_sublayers - lower, {})
        return [_Segment("pre_norm", lower, {}), upper] if lower else [upper]
    if not isinstance(segments, list) or not segments:
        raise ValueError(f"segments must be a list of at least one segment; got {segments!r}. {_FORM}")
    parsed = [_parsed_segment(i, segment) for i, segment in enumerate(segments)]
    blocks = sum(segment.num_sublayers for segment in parsed) // 2
    if 2 * blocks != num_sublayers:
        counted = " + ".join(str(segment.num_sublayers // 2) for segment in parsed)
        raise ValueError(
            f"the blocks of the segments must add up to the depth, {num_sublayers / 2:g}; got {counted} = "
            f"{blocks}. Change the segments or the depth."
        )
    return parsed


def _parsed_segment(i: int, segment: Any) -> _Segment:
    if not isinstance(segment, list | tuple) or len(segment) not in (2, 3) or not isinstance(segment[0], str):
        raise ValueError(f"segment {i} is {segment!r}. {_FORM}")
    name, blocks, *rest = segment
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ValueError(
            f"segment {i} ({name}): its blocks must be a whole number of at least 1; got {blocks!r}. {_FORM}"
        )
    if name == "by_depth":
        raise ValueError(f"segment {i} is a mixture itself. List its segments in its place.")
    options = rest[0] if rest else {}
    if not isinstance(options, dict):
        raise ValueError(f"segment {i} ({name}): its options must be a table; got {options!r}. {_FORM}")
    return _Segment(name, 2 * blocks, options)
