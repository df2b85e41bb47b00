"""Hyperparameter tuning on a Dask cluster.

>>> import dasktune as tune
>>> tune.TuneConfig(metric="loss", mode="min").mode
'min'
"""

from importlib.metadata import version

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.errors import (
    CheckpointNotFound,
    ClusterError,
    ClusterLost,
    ConfigError,
    PreflightError,
    StorageError,
    TrialError,
    TuneError,
)
from dasktune.registry import register_env, register_trainable
from dasktune.results import Result, ResultGrid
from dasktune.space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from dasktune.storage.checkpoint import Checkpoint
from dasktune.trainable import (
    Trainable,
    get_checkpoint,
    get_client,
    get_context,
    report,
    with_parameters,
    with_resources,
)
from dasktune.trial.resources import PlacementGroupFactory, Resources
from dasktune.tuner import Tuner
from dasktune.workers import WorkerInfo

__version__ = version("dasktune")

__all__ = [
    # Running
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "TuneConfig",
    "Tuner",
    "WorkerInfo",
    # Trainables
    "Checkpoint",
    "Trainable",
    "get_checkpoint",
    "get_client",
    "get_context",
    "register_env",
    "register_trainable",
    "report",
    "with_parameters",
    "with_resources",
    "PlacementGroupFactory",
    "Resources",
    # Search spaces
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
    # Results
    "Result",
    "ResultGrid",
    # Errors
    "CheckpointNotFound",
    "ClusterError",
    "ClusterLost",
    "ConfigError",
    "PreflightError",
    "StorageError",
    "TrialError",
    "TuneError",
    "__version__",
]
