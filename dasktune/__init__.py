"""Hyperparameter tuning on a Dask cluster.

>>> import dasktune as tune
>>> tune.TuneConfig(metric="loss", mode="min").mode
'min'
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from dasktune.version import __version__

if TYPE_CHECKING:
    from dasktune.callback import Callback, Trial
    from dasktune.classic import Experiment, run, run_experiments
    from dasktune.cluster.notices.preemption import PreemptionNotices
    from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
    from dasktune.config.resume_config import ResumeConfig
    from dasktune.config.worker_filter import WorkerInfo
    from dasktune.control import TuneClient
    from dasktune.errors import (
        CheckpointDamaged,
        CheckpointNotFound,
        ClusterError,
        ClusterLost,
        ConfigError,
        ControlError,
        PreflightError,
        StorageError,
        TrialError,
        TuneError,
    )
    from dasktune.forecast.what_if import WhatIf, WhatIfRow
    from dasktune.progress.reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from dasktune.registry import get_env, register_env, register_trainable
    from dasktune.results.result import Result
    from dasktune.schedulers import create_scheduler
    from dasktune.search import create_searcher
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
        secret,
        uniform,
    )
    from dasktune.stopper import Stopper
    from dasktune.storage.checkpoints.checkpoint import Checkpoint
    from dasktune.trainable import (
        Notice,
        Trainable,
        TrialInfo,
        TuneContext,
        get_checkpoint,
        get_client,
        get_context,
        get_notice,
        report,
        should_checkpoint,
        with_parameters,
        with_ranks,
        with_resources,
    )
    from dasktune.trial.location import Location
    from dasktune.trial.resources import PlacementGroupFactory, Resources
    from dasktune.tuner.analysis import ExperimentAnalysis
    from dasktune.tuner.queued import QueuedExperiment, prune_queue
    from dasktune.tuner.result_grid import ResultGrid
    from dasktune.tuner.scheduler_forecast import whatif
    from dasktune.tuner.submitted import DetachedExperiment, attach
    from dasktune.tuner.tuner import Tuner

    tune: ModuleType

__all__ = [
    # Running
    "CLIReporter",
    "Callback",
    "CheckpointConfig",
    "DetachedExperiment",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PreemptionNotices",
    "ProgressReporter",
    "QueuedExperiment",
    "ResumeConfig",
    "RunConfig",
    "TuneClient",
    "TuneConfig",
    "Tuner",
    "WorkerInfo",
    "attach",
    "prune_queue",
    "Experiment",
    "run",
    "run_experiments",
    # Trainables
    "Checkpoint",
    "Notice",
    "Trainable",
    "Trial",
    "TrialInfo",
    "TuneContext",
    "get_checkpoint",
    "get_client",
    "get_context",
    "get_env",
    "get_notice",
    "register_env",
    "register_trainable",
    "report",
    "should_checkpoint",
    "with_parameters",
    "with_ranks",
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
    "secret",
    "uniform",
    # Policies
    "Stopper",
    "create_scheduler",
    "create_searcher",
    # Results
    "ExperimentAnalysis",
    "Location",
    "Result",
    "ResultGrid",
    "WhatIf",
    "WhatIfRow",
    "whatif",
    # Errors
    "CheckpointDamaged",
    "CheckpointNotFound",
    "ClusterError",
    "ClusterLost",
    "ConfigError",
    "ControlError",
    "PreflightError",
    "StorageError",
    "TrialError",
    "TuneError",
    "__version__",
]

#: The module of each name, which is imported at the first access: the process of an isolated trial
#: needs few of them, and should not import the others.
_HOMES: Final = {
    "dasktune.tuner.analysis": ("ExperimentAnalysis",),
    "dasktune.callback": ("Callback", "Trial"),
    "dasktune.cluster.notices.preemption": ("PreemptionNotices",),
    "dasktune.classic": ("Experiment", "run", "run_experiments"),
    "dasktune.config": ("CheckpointConfig", "FailureConfig", "RunConfig", "TuneConfig"),
    "dasktune.control": ("TuneClient",),
    "dasktune.errors": (
        "CheckpointDamaged",
        "CheckpointNotFound",
        "ClusterError",
        "ClusterLost",
        "ConfigError",
        "ControlError",
        "PreflightError",
        "StorageError",
        "TrialError",
        "TuneError",
    ),
    "dasktune.tuner.queued": ("QueuedExperiment", "prune_queue"),
    "dasktune.tuner.submitted": ("DetachedExperiment", "attach"),
    "dasktune.progress.reporter": (
        "CLIReporter",
        "JupyterNotebookReporter",
        "ProgressReporter",
    ),
    "dasktune.registry": ("get_env", "register_env", "register_trainable"),
    "dasktune.results.result": ("Result",),
    "dasktune.tuner.result_grid": ("ResultGrid",),
    "dasktune.tuner.scheduler_forecast": ("whatif",),
    "dasktune.forecast.what_if": ("WhatIf", "WhatIfRow"),
    "dasktune.config.resume_config": ("ResumeConfig",),
    "dasktune.schedulers": ("create_scheduler",),
    "dasktune.search": ("create_searcher",),
    "dasktune.space": (
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
        "secret",
        "uniform",
    ),
    "dasktune.stopper": ("Stopper",),
    "dasktune.storage.checkpoints.checkpoint": ("Checkpoint",),
    "dasktune.trainable": (
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
    ),
    "dasktune.trial.location": ("Location",),
    "dasktune.trial.resources": ("PlacementGroupFactory", "Resources"),
    "dasktune.tuner.tuner": ("Tuner",),
    "dasktune.config.worker_filter": ("WorkerInfo",),
}

#: Submodules that are attributes of the package, and are imported at the first access.
_MODULES: Final = frozenset(
    {
        "callback",
        "config",
        "errors",
        "experiment",
        "integration",
        "logger",
        "registry",
        "results",
        "schedulers",
        "search",
        "space",
    }
    | {"stopper", "storage", "trainable", "trial", "tuner"}
)

_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value: Any = getattr(_import(_HOME_OF[name]), name)
    elif name in _MODULES:
        return _import(f"{__name__}.{name}")
    elif name == "tune":
        # For `from dasktune import tune`, which was `from ray import tune`.
        return sys.modules[__name__]
    else:
        raise _unknown(name)
    globals()[name] = value
    return value


def _unknown(name: str) -> AttributeError:
    """Return the error of a name that the package lacks, with what to write instead."""
    message = f"module {__name__!r} has no attribute {name!r}"
    # Other code looks for names with underscores, and expects that they may be missing.
    hint = "" if name.startswith("_") else import_module("dasktune.text.familiar_names").name_hint(name)
    if hint:
        return AttributeError(f"{message}; {hint}", name=name)
    # With both, Python suggests similar names.
    return AttributeError(message, name=name, obj=sys.modules[__name__])


def _import(name: str) -> ModuleType:
    """Import a module, so that a Ctrl-C meanwhile is not lost.

    Imports run callbacks and extension code that swallow a KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread gets a Ctrl-C.
        return import_module(name)
    from dasktune.tuner.signals import keep_interrupts

    with keep_interrupts():
        return import_module(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
