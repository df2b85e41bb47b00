"""Ray Tune's older interface: ``tune.run``, ``tune.run_experiments`` and ``Experiment``.

It only translates arguments; experiments run in ``dasktune.tuner``.
"""

from dasktune.classic.classic_run import run, run_experiments
from dasktune.classic.experiment import Experiment

__all__ = ["Experiment", "run", "run_experiments"]
