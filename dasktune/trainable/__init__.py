"""User code on its worker: ``report()``, the class API, and the thread that runs them."""

from dasktune.trainable.interface import with_parameters, with_resources
from dasktune.trainable.nested import get_client
from dasktune.trainable.session import TuneContext, get_checkpoint, get_context, report
from dasktune.trainable.trainable import Trainable
from dasktune.trainable.trial_info import TrialInfo

__all__ = [
    "Trainable",
    "TrialInfo",
    "TuneContext",
    "get_checkpoint",
    "get_client",
    "get_context",
    "report",
    "with_parameters",
    "with_resources",
]
