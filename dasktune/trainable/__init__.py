"""User code on its worker: ``report()``, the class API, and the thread that runs them."""

from dasktune.trainable.api.binding import with_parameters, with_resources
from dasktune.trainable.api.dask_client import get_client
from dasktune.trainable.api.distributed import with_ranks
from dasktune.trainable.api.session import (
    TrialInfo,
    TuneContext,
    get_checkpoint,
    get_context,
    report,
)
from dasktune.trainable.api.trainable import Trainable

__all__ = [
    "Trainable",
    "TrialInfo",
    "TuneContext",
    "get_checkpoint",
    "get_client",
    "get_context",
    "report",
    "with_parameters",
    "with_ranks",
    "with_resources",
]
