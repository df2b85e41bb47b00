"""What a simulated trainable may be, and may yield."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from dasktune.errors import check
from dasktune.trial.metrics import number

__all__ = ["SimulatedTrainable", "Step", "as_step", "check_simulated", "is_time"]

#: ``fn(config)`` or ``fn(config, checkpoint)`` yields ``(metrics, seconds)`` or
#: ``(metrics, seconds, checkpoint)``.
SimulatedTrainable = Callable[..., Generator[tuple[Any, ...], None, None]]

_SHAPE: Final = "(metrics, seconds) or (metrics, seconds, checkpoint)"
_HINT: Final = f"Yield {_SHAPE}."


@dataclass(frozen=True, slots=True)
class Step:
    """What a simulated trainable yielded, checked."""

    metrics: Mapping[str, Any]
    seconds: float
    checkpoint: Any


def check_simulated(trainable: SimulatedTrainable) -> bool:
    """Return whether a trainable takes a checkpoint, or raise if it is none for a simulation.

    Parameters
    ----------
    trainable : callable
        The user's.

    Raises
    ------
    ConfigError
        If it is no generator function of one or two arguments.
    """
    fits = inspect.isgeneratorfunction(trainable)
    count = len(inspect.signature(trainable).parameters) if fits else 0
    check(
        1 <= count <= 2,
        "trainable",
        "a generator function of (config) or (config, checkpoint)",
        trainable,
        "It yields (metrics, seconds) for each step.",
    )
    return count == 2


def as_step(yielded: Any, *, takes_checkpoint: bool) -> Step:
    """Return what was yielded as a step.

    Parameters
    ----------
    yielded : object
        What the trainable yielded.
    takes_checkpoint : bool
        Whether it may go on from one.

    Raises
    ------
    ConfigError
        What the trial fails with, if it breaks the rules.
    """
    shaped = isinstance(yielded, tuple) and len(yielded) in (2, 3)
    check(shaped, "what a simulated trainable yields", _SHAPE, yielded)
    metrics, seconds, checkpoint = (*yielded, None)[:3]
    check(isinstance(metrics, Mapping), "metrics", "a dict", metrics, _HINT)
    check(is_time(seconds), "seconds", "a number, at least 0", seconds, _HINT)
    check(
        checkpoint is None or takes_checkpoint,
        "checkpoint",
        "None where the trainable takes none",
        checkpoint,
        "Write def trainable(config, checkpoint).",
    )
    return Step(metrics, float(seconds), checkpoint)


def is_time(value: object) -> bool:
    """Whether a value is a number of seconds, at least 0."""
    seconds = None if isinstance(value, bool) else number(value)
    return seconds is not None and isfinite(seconds) and seconds >= 0
