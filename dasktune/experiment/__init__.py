"""The pure state machine of an experiment: events in, actions out.

Nothing here reads a clock, a file or the network. The loop that feeds it is in `dasktune.runner`,
the policies that it asks are in `schedulers`, `search` and `stopper`.
"""

import sys
from typing import Any, Final

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

#: Names that `ray.tune.experiment` has. Here they are attributes of the whole package.
_OF_THE_PACKAGE: Final = frozenset({"Experiment", "Trial"})


def __getattr__(name: str) -> Any:
    if name in _OF_THE_PACKAGE:
        # No import: this package must not depend on the layers of these classes. Its parent is
        # always loaded, and imports them if a user asks for them here.
        return getattr(sys.modules["dasktune"], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
