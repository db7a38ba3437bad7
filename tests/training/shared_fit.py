"""A fit by as many processes as start this file: ``shared_fit.py OUT [checkpoint] [stop] [die] [odd]``.

Rank 0 leaves losses, history and weights in OUT/fit.pt; each rank leaves what it was told in OUT/rank-N.txt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from fints.config import TrainingConfig
from fints.model import Transformer
from fints.training import fit
from fints.training.distributed import ranks

STEPS = 12


class Windows:
    """Noise with a missing target in every third window, so that ranks count different numbers of them."""

    def __init__(self, number: int, seed: int, die_at: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(number, 6, 3, generator=generator, dtype=torch.float64)
        self.targets = torch.randn(number, 6, generator=generator, dtype=torch.float64)
        self.targets[::3, :4] = float("nan")
        self.steps, self.die_at = 0, die_at

    def __len__(self) -> int:
        return len(self.inputs)

    def gather(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.steps += len(positions) == 4
        if self.die_at and self.steps == self.die_at:
            os._exit(9)
        return self.inputs[positions], self.targets[positions]


def main() -> None:
    out, words = Path(sys.argv[1]), sys.argv[2:]
    with ranks() as here:
        torch.manual_seed(5)
        # The scheme measures training windows first: all of them, whoever takes part.
        model = Transformer(
            num_features=3, context=6, width=8, depth=2, num_heads=2, residual="admin"
        ).double()
        train = Windows(30, seed=1, die_at=3 if "die" in words and not here.first else 0)
        config = TrainingConfig(
            steps=STEPS,
            warmup_steps=2,
            evaluate_every=4,
            batch_size=7 if "odd" in words else 8,
            learning_rate=1e-2,
            device="cpu",
        )
        rows: list[int] = []

        def note(row: dict[str, float]) -> None:
            rows.append(int(row["step"]))
            if "stop" in words and row["step"] == 8:
                sys.exit(0)

        result = fit(
            model,
            train,
            Windows(10, seed=2),
            config,
            seed=3,
            checkpoint=out / "checkpoint.pt" if "checkpoint" in words else None,
            on_row=note,
        )
        (out / f"rank-{here.number}.txt").write_text(f"{here.total} {rows}")
        found = {"losses": result.losses, "history": result.history, "weights": model.state_dict()}
        torch.save(found, out / ("fit.pt" if here.first else f"other-{here.number}.pt"))


if __name__ == "__main__":
    main()
