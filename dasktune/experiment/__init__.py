"""The pure state machine of an experiment: events in, actions out.

Nothing here reads a clock, a file or the network. The loop that feeds it is in `dasktune.runner`,
the policies that it asks are in `schedulers`, `search` and `stopper`.
"""

from dasktune.experiment.experiment_machine import ExperimentMachine, HandleResult
from dasktune.experiment.recorded_decisions import RecordedDecisions
from dasktune.experiment.settings import ExperimentSettings
from dasktune.experiment.trial_index import TrialIndex

__all__ = [
    "ExperimentMachine",
    "ExperimentSettings",
    "HandleResult",
    "RecordedDecisions",
    "TrialIndex",
]
