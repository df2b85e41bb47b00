"""The pure state machine of an experiment."""

from dasktune.experiment.experiment import Experiment
from dasktune.experiment.roster import Roster
from dasktune.experiment.settings import ExperimentSettings

__all__ = ["Experiment", "ExperimentSettings", "Roster"]
