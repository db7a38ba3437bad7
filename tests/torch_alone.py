"""Train one step of every scheme where torch is the only package. Run by hand, by a test and by CI.

`python tests/torch_alone.py` uses the environment as it is; with `--refuse` no other
installed package is found, but for those that torch itself needs.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from re import match

CORE = ("residual", "model", "training")


class WithoutOthers(MetaPathFinder):
    """Finds what `finder` finds, as on a machine where torch alone is installed."""

    def __init__(self, finder: MetaPathFinder) -> None:
        allowed = _needed_by("torch", {"fints"})
        self.finder = finder
        self.absent = {
            module
            for module, distributions in packages_distributions().items()
            if not {name.lower().replace("_", "-") for name in distributions} & allowed
        }

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return None if name.partition(".")[0] in self.absent else self.finder.find_spec(name, path, target)


def _needed_by(distribution: str, seen: set[str]) -> set[str]:
    if distribution in seen:
        return seen
    seen.add(distribution)
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return seen
    for line in lines:
        if "extra ==" not in line:
            _needed_by(match(r"[\w.-]+", line)[0].lower().replace("_", "-"), seen)
    return seen


def main() -> None:
    if "--refuse" in sys.argv:
        sys.meta_path[:] = [WithoutOthers(finder) for finder in sys.meta_path]
    import torch

    from fints.config import ModelConfig, TrainingConfig
    from fints.model import build
    from fints.residual import RESIDUALS
    from fints.training import fit, predict

    class Noise:
        """Sixteen windows of numbers that nothing can forecast."""

        def __init__(self) -> None:
            draw = torch.Generator().manual_seed(0)
            self.inputs = torch.randn(16, 6, 3, generator=draw)
            self.targets = torch.randn(16, 6, generator=draw)

        def __len__(self) -> int:
            return 16

        def gather(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.inputs[positions], self.targets[positions]

    config = TrainingConfig(steps=1, warmup_steps=0, batch_size=8, device="cpu")
    for name in RESIDUALS:
        shape = ModelConfig(residual=name, width=8, depth=1, num_heads=2)
        model = build(shape, num_features=3, context=6, seed=0)
        before = [parameter.clone() for parameter in model.parameters()]
        result = fit(model, Noise(), Noise(), config, seed=0)
        assert result.outcome == "finished", result.reason
        assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        assert len(predict(model, Noise(), batch_size=8)["mean"]) == 16
    beyond = {name.partition(".")[0] for name in sys.modules} & {"polars", "pandas", "optuna", "mlflow"}
    assert not beyond, f"packages that the core must not import: {sorted(beyond)}"
    print(f"{len(RESIDUALS)} schemes trained one step with torch {torch.__version__} alone")


if __name__ == "__main__":
    main()
