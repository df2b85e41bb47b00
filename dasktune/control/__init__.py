"""Commands to a running experiment over HTTP: the driver's control server, and its client.

`dasktune.runner.commands` executes the commands. The dashboard's server is in `dasktune.dashboard`.
"""

from dasktune.control.client import ExperimentInfo, OutcomeInfo, TrialSnapshot, TuneClient

__all__ = ["ExperimentInfo", "OutcomeInfo", "TrialSnapshot", "TuneClient"]
