"""The pure state machine of an experiment."""

from dasktune.experiment.experiment import Experiment
from dasktune.experiment.precedent import Precedent
from dasktune.experiment.roster import Roster
from dasktune.experiment.settings import ExperimentSettings

__all__ = ["Experiment", "ExperimentSettings", "Precedent", "Roster"]
