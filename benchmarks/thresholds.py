"""Print what a healthy network hardly ever exceeds: what reliefs of ill ones alone have for thresholds.

    python benchmarks/thresholds.py [--schemes post_norm,pre_norm] [--rates 7e-4,2e-3,5.6e-3] [--depth 4]
                                    [--width 32] [--context 24] [--steps 800] [--assets 64] [--demand 2]
                                    [--r2 0.2] [--days 1200] [--optimizer adamw] [--panels 3]

`output_change_step` shortens a step that changes the output by more than its budget, `hinged_decorrelation`
pushes the tokens of a sublayer apart that are more alike than its margin. They leave a healthy network as it
is only if it hardly ever gets there: budget and margin are to lie above what 99 of 100 of its steps and
sublayers do, where it is well. The network is the reference of `studies/collapse_or_vanishing.py`;
a step is measured on its own windows, in evaluation mode, in units of the output (targets have root mean
square 1), `token_alignment` in each step and sublayer. The share is of what the oracle explains of 100 later
days: a network that fell ill shows it there. Panels 40 to 49 are for this: no study judges them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from fixed_steps import fixed_steps
from torch import Tensor

from fints.config import Experiment
from fints.data import simulate
from fints.data.learning import prepare
from fints.interventions import Applied, Penalty, UpdateChange, token_alignment
from fints.interventions.base import Cause, Role
from fints.interventions.passing import Passing
from fints.model import build
from fints.training import Weights, derive, fit, predict

FIRST_PANEL, LATER_DAYS = 40, 100
QUANTILES = (0.5, 0.9, 0.99, 1.0)


class Measured(UpdateChange):
    """Takes every step as it is, and notes how much it changed the output."""

    cause: ClassVar[Cause] = "amplification"
    role: ClassVar[Role] = "ablation"

    def __init__(self, *, dose: float = 1.0, seed: int = 0) -> None:
        self.dose = dose
        self.found: list[float] = []

    def update(
        self, weights: Weights, take: Callable[[], None], inputs: Tensor, *, rate_share: Tensor
    ) -> None:
        """Take the step and measure it."""
        before = weights.forecasts(inputs)
        take()
        self.found.append(float((weights.forecasts(inputs) - before).square().mean().sqrt()))


class Alignments(Penalty):
    """Adds nothing, and notes how much the tokens of each sublayer point the same way."""

    cause: ClassVar[Cause] = "representation"
    role: ClassVar[Role] = "ablation"

    def __init__(self, *, dose: float = 1.0, seed: int = 0) -> None:
        self.dose = dose
        self.found: list[float] = []

    def add(self, passing: Passing, weights: Weights, *, step: int) -> None:
        """Measure the pass of a step."""
        self.found.extend(float(token_alignment(u.detach())) for u in passing.read)


def main() -> int:
    """Train, print two lines a scheme and rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemes", type=lambda text: text.split(","), default=["post_norm", "pre_norm"])
    parser.add_argument(
        "--rates", type=lambda text: [float(one) for one in text.split(",")], default=[7e-4, 2e-3, 5.6e-3]
    )
    sizes = {"depth": 4, "width": 32, "context": 24, "steps": 800, "assets": 64, "days": 1200}
    for name, default in {**sizes, "demand": 2, "panels": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--r2", type=float, default=0.2, help="of the oracle")
    parser.add_argument("--optimizer", default="adamw")
    asked = parser.parse_args()
    if not 1 <= asked.panels <= 10:
        parser.error(f"--panels must be from 1 to 10; got {asked.panels}.")
    names = ("half", "9 of 10", "99 of 100", "all")
    head = "".join(f"{name:>11}" for name in names)
    print(f"{'scheme':12}{'rate':>8}  {'measured':16}{head}  share, by panel")
    for scheme in asked.schemes:
        for rate in asked.rates:
            told = [_trained(asked, scheme, rate, FIRST_PANEL + panel) for panel in range(asked.panels)]
            shares = ", ".join(f"{share:.2f}" for *_, share in told)
            for place, name in enumerate(("step's change", "token alignment")):
                found = np.concatenate([one[place] for one in told])
                below = "".join(f"{value:>11.3f}" for value in np.quantile(found, QUANTILES))
                print(f"{scheme:12}{rate:>8g}  {name:16}{below}  {shares}", flush=True)
    return 0


def _trained(
    asked: argparse.Namespace, scheme: str, rate: float, panel: int
) -> tuple[list[float], list[float], float]:
    """Return the change and the alignments of every step, and the share of the oracle that is found."""
    experiment = _experiment(asked, scheme, rate)
    made = simulate(
        num_days=asked.days + LATER_DAYS,
        num_assets=asked.assets,
        signal="memory_chain",
        depth_demand=asked.demand,
        r2=asked.r2,
        seed=panel,
    )
    dates = made.panel.dates.to_list()
    first, last = dates[asked.days], dates[-2]
    learning = prepare(
        made.panel, experiment.data, train=(dates[0], dates[asked.days - 2]), validation=(first, last)
    )
    train = learning.windows.select(dates[0], dates[asked.days - 2], labelled=True, every_token=True)
    later = learning.windows.select(first, last, labelled=True)
    model = build(experiment.model, num_features=2, context=asked.context, seed=derive(panel, "model"))
    measured, alignments = Measured(), Alignments()
    steering = Applied([measured, alignments], model)
    fit(model, train, None, experiment.training, seed=panel, steering=steering)
    p = predict(model, later)["mean"][:, 0]
    y = later.gather(torch.arange(len(later)))[1][:, -1]
    explained = 1 - float((p - y).square().mean() / y.square().mean())
    return measured.found, alignments.found, explained / asked.r2


def _experiment(asked: argparse.Namespace, scheme: str, rate: float) -> Experiment:
    return fixed_steps(
        asked.steps,
        {
            "data.context": asked.context,
            "model.residual": scheme,
            "model.depth": asked.depth,
            "model.width": asked.width,
            "training.optimizer": asked.optimizer,
            "training.learning_rate": rate,
            "training.batch_size": 32,
            "training.warmup_steps": asked.steps // 16,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
