"""Integrations with training packages and tracking services, one module for each package.

A module imports its package when it is used, and is itself imported at the first access.
``reporting`` and ``tracked_run`` have the code that several integrations share. File loggers live
in ``dasktune.logger``.
"""

from importlib import import_module
from types import ModuleType
from typing import Final

_MODULES: Final = frozenset(
    {
        "keras",
        "lightgbm",
        "mlflow",
        "opentelemetry",
        "pytorch_lightning",
        "torch",
        "transformers",
        "wandb",
        "xgboost",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
