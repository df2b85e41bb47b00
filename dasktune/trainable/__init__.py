"""User code on its worker: ``report()``, the class API, and the thread that runs them."""

from dasktune.trainable.api.binding import with_parameters, with_resources
from dasktune.trainable.api.dask_client import get_client
from dasktune.trainable.api.distributed import with_ranks
from dasktune.trainable.api.session import (
    Notice,
    TrialInfo,
    TuneContext,
    get_checkpoint,
    get_context,
    get_notice,
    report,
    should_checkpoint,
)
from dasktune.trainable.api.trainable import Trainable

__all__ = [
    "Notice",
    "Trainable",
    "TrialInfo",
    "TuneContext",
    "get_checkpoint",
    "get_client",
    "get_context",
    "get_notice",
    "report",
    "should_checkpoint",
    "with_parameters",
    "with_ranks",
    "with_resources",
]
