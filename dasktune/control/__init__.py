"""Commands to a running experiment over HTTP: the server of its driver, and the client."""

from dasktune.control.client import ExperimentInfo, OutcomeInfo, TrialInfo, TuneClient

__all__ = ["ExperimentInfo", "OutcomeInfo", "TrialInfo", "TuneClient"]
