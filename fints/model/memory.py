"""How much memory a fit needs, known before it starts."""

from __future__ import annotations

import torch
from torch import Tensor

from fints.config import ModelConfig
from fints.model.checkpointing import segment_length, streams_of
from fints.model.transformer import Transformer, build
from fints.residual import Branch, State

__all__ = ["estimate_memory"]

# Parameter, gradient, and the two moments of AdamW, in float32.
_BYTES_A_PARAMETER = 4 + 4 + 8


def estimate_memory(
    model: ModelConfig,
    *,
    num_features: int,
    context: int,
    batch_size: int,
    num_horizons: int = 1,
    activation_checkpointing: bool = False,
    precision: str = "float32",
) -> int:
    """Estimate the bytes of one AdamW step.

    Sixteen bytes a parameter (itself, its gradient, two moments), plus activations. These are no
    formula: the network runs once on the meta device, which computes shapes only, and what autograd
    would keep is counted, each storage once, so the count is right for every residual scheme.
    Added is what lives for a moment in the backward pass, taken as the largest sublayer. With
    checkpointing the states between segments are kept, and one segment at a time.

    Under "bfloat16" what a branch keeps is counted at half its size, plus the cast weights; the
    trunk and the norms stay in float32.

    Returns
    -------
    int
        Bytes. Not counted: workspaces of kernels, fragmentation of the allocator, the process itself.
    """
    with torch.device("meta"):
        network = build(model, num_features=num_features, context=context, num_horizons=num_horizons, seed=0)
        x = torch.empty(batch_size, context, num_features)
    branch_bytes = 0.5 if precision == "bfloat16" else 1.0
    numbers = sum(parameter.numel() for parameter in network.parameters())
    kept = _Kept(network, branch_bytes)
    largest = 0.0
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        embedded = network.embedding(x)
        state: State = network.residual.open(embedded)
        first_value: Tensor | None = None
        parts = (state,) if isinstance(state, Tensor) else state
        number = len(network.branches)
        segment = segment_length(streams_of(embedded, parts), number) if activation_checkpointing else 1
        for start in range(0, number, segment):
            before = dict(kept.storages)
            entering = state
            for layer in range(start, min(start + segment, number)):
                state, first_value = network.sublayer(state, layer, first_value, kept.watch)
            largest = max(largest, kept.total() - sum(size for _, size in before.values()))
            if activation_checkpointing:
                kept.storages = before
                for tensor in (entering,) if isinstance(entering, Tensor) else entering:
                    kept.keep(tensor)
                if first_value is not None:
                    kept.keep(first_value)
        network.head(network.residual.close(state, len(network.branches)))
    cast_weights = 2 * numbers if precision == "bfloat16" else 0
    return int(_BYTES_A_PARAMETER * numbers + cast_weights + kept.total() + largest)


class _Kept:
    """The storages that autograd keeps, with their bytes; those of the network itself do not count."""

    def __init__(self, network: Transformer, branch_bytes: float) -> None:
        tensors = [*network.parameters(), *network.buffers()]
        # The storage objects are held, because an id is unique among live objects only.
        self.own = {id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self.storages: dict[tuple[int, bool], tuple[torch.UntypedStorage, float]] = {}
        self.branch_bytes = branch_bytes
        self.in_branch = False

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        share = self.branch_bytes if self.in_branch else 1.0
        # What a branch keeps in a lower precision is a copy of its own beside what the trunk keeps.
        key = (id(storage), share < 1)
        if id(storage) not in self.own and key not in self.storages:
            self.storages[key] = (storage, share * storage.nbytes())
        return tensor

    def watch(self, branch: Branch) -> Branch:
        def watched(u: Tensor) -> Tensor:
            self.in_branch = True
            y = branch(u)
            self.in_branch = False
            return y

        return watched

    def total(self) -> float:
        return sum(size for _, size in self.storages.values())
