"""Ray Tune's older front door, ``tune.run``: another way to say what a `Tuner` does."""

from dasktune.classic.experiment import Experiment
from dasktune.classic.run import run, run_experiments

__all__ = ["Experiment", "run", "run_experiments"]
