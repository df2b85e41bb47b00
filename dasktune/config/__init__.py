"""The settings of an experiment, validated before anything starts.

Each setting is implemented in the package that it configures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dasktune.config.checkpoint_config import CheckpointConfig
    from dasktune.config.failure_config import FailureConfig
    from dasktune.config.run_config import DEFAULT_STORAGE_PATH, RunConfig
    from dasktune.config.tune_config import DEFAULT_METRIC, TuneConfig

__all__ = [
    "DEFAULT_METRIC",
    "DEFAULT_STORAGE_PATH",
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "TuneConfig",
]

#: The module of each name, which is imported at the first access: the child process of a trial
#: imports the registry, and must not import these classes and NumPy.
_HOME_OF: Final = {
    "DEFAULT_METRIC": "tune_config",
    "DEFAULT_STORAGE_PATH": "run_config",
    "CheckpointConfig": "checkpoint_config",
    "FailureConfig": "failure_config",
    "RunConfig": "run_config",
    "TuneConfig": "tune_config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
