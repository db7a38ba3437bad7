"""What only a fit would find wrong with an experiment, found before anything is fitted."""

from __future__ import annotations

import re

from fints.config import Experiment

__all__ = ["check_experiment"]

# Networks of the plan are built to be counted: wider and deeper ones are a slip of the hand.
WIDEST, DEEPEST = 2**17, 2**12
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def check_experiment(experiment: Experiment) -> None:
    """Refuse a network that cannot be built, and names that nothing here has.

    Raises
    ------
    ValueError
        If an option is none of its scheme's, an intervention or a device is unknown, or a size is absurd.
    """
    from fints.interventions.table import named_changes
    from fints.model import parameter_count

    model, data, training = experiment.model, experiment.data, experiment.training
    for name, value, most in (("width", model.width, WIDEST), ("depth", model.depth, DEEPEST)):
        if value > most:
            raise ValueError(f"model.{name} = {value} cannot be used: choose at most {most}.")
    if not DEVICE.fullmatch(training.device):
        raise ValueError(
            f"training.device = {training.device!r} is unknown: choose auto, cpu, cuda, cuda:0, cuda:1, ... "
            "or mps."
        )
    named_changes(training.interventions, seed=0)
    parameter_count(model, num_features=len(data.features), context=data.context)
