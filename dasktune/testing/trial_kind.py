"""What the trials of an executor in this process are."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias

from dasktune.errors import check
from dasktune.trial.metrics import number

__all__ = ["GeneratorTrials", "SimulatedTrainable", "Step", "Steps", "TrialKind", "is_time"]

_SHAPE: Final = "(metrics, seconds) or (metrics, seconds, checkpoint)"
_HINT: Final = f"Yield {_SHAPE}."

#: ``fn(config)`` or ``fn(config, checkpoint)`` yields ``(metrics, seconds)`` or
#: ``(metrics, seconds, checkpoint)``.
SimulatedTrainable = Callable[..., Generator[tuple[Any, ...], None, None]]

#: What a trial yields: for each step its metrics, its seconds and what can be saved after it.
Steps: TypeAlias = Generator[tuple[Any, ...], None, None]


@dataclass(frozen=True, slots=True)
class Step:
    """What a trial has yielded, checked."""

    metrics: Mapping[str, Any]
    seconds: float
    checkpoint: Any


class TrialKind(ABC):
    """Says what a step of a trial does, and how a checkpoint of it is kept.

    Examples
    --------
    >>> from dasktune.testing import ManualClock, SimulatedTrialExecutor
    >>> class Counting(TrialKind):
    ...     def begin(self, config, checkpoint, is_milestone):
    ...         for step in range(checkpoint or 0, 3):
    ...             yield {"step": step}, 1.0, step + 1
    ...
    ...     def kept(self, state):
    ...         return state
    >>> executor = SimulatedTrialExecutor(Counting(), clock=ManualClock())
    """

    #: Whether a trial can go on from a checkpoint, so that it may yield what is saved.
    takes_checkpoints = True
    #: Whether that is saved only when it is asked for: by ``should_checkpoint=True`` in the metrics
    #: of a step, or at a pause, in memory.
    saves_on_demand = False
    #: Whether a trial that is told to stop is saved before.
    saves_at_end = False
    #: Whether a trial takes its next step only when somebody asks for the next event, so that what
    #: it has told before can be kept by then. Otherwise it takes it at once, ahead of what it is
    #: told to do.
    takes_turns = False

    @abstractmethod
    def begin(
        self,
        config: dict[str, Any],
        checkpoint: Any,
        is_milestone: Callable[[Mapping[str, Any]], bool],
    ) -> Steps:
        """Begin a trial, which goes on with each ``next``; it is over when it is exhausted.

        Parameters
        ----------
        config : dict
            Its configuration; nobody else's.
        checkpoint : object
            What :meth:`kept` has returned, to go on from; None at the first start.
        is_milestone : callable
            Whether somebody waits to judge a result.
        """

    @abstractmethod
    def kept(self, state: Any) -> Any:
        """Return a checkpoint: a state as it is now, whatever the trial does to it later.

        Parameters
        ----------
        state : object
            What the last step has yielded to be saved.
        """

    def checked(self, yielded: Any) -> Step:
        """Return a step, or raise what the trial fails with.

        Parameters
        ----------
        yielded : object
            By a trial.

        Raises
        ------
        ConfigError
            If it is none.
        """
        shaped = isinstance(yielded, tuple) and len(yielded) in (2, 3)
        check(shaped, "what a simulated trainable yields", _SHAPE, yielded)
        metrics, seconds, checkpoint = (*yielded, None)[:3]
        check(isinstance(metrics, Mapping), "metrics", "a dict", metrics, _HINT)
        check(is_time(seconds), "seconds", "a number, at least 0", seconds, _HINT)
        check(
            checkpoint is None or self.takes_checkpoints,
            "checkpoint",
            "None where the trainable takes none",
            checkpoint,
            "Write def trainable(config, checkpoint).",
        )
        return Step(metrics, float(seconds), checkpoint)


class GeneratorTrials(TrialKind):
    """Trials of a generator function.

    Parameters
    ----------
    function : callable
        As `SimulatedTrialExecutor` takes it.
    saves_on_demand : bool
        Whether a checkpoint is saved only when it is asked for.

    Raises
    ------
    ConfigError
        If it is no such function.
    """

    def __init__(self, function: SimulatedTrainable, *, saves_on_demand: bool) -> None:
        yields = inspect.isgeneratorfunction(function)
        count = len(inspect.signature(function).parameters) if yields else 0
        check(
            1 <= count <= 2,
            "trainable",
            "a generator function of (config) or (config, checkpoint)",
            function,
            "It yields (metrics, seconds) for each step.",
        )
        self._function = function
        self.takes_checkpoints = count == 2
        self.saves_on_demand = saves_on_demand

    def begin(
        self,
        config: dict[str, Any],
        checkpoint: Any,
        is_milestone: Callable[[Mapping[str, Any]], bool],
    ) -> Steps:
        """Begin a trial with a copy of a checkpoint, which others may go on from, too."""
        if self.takes_checkpoints:
            return self._function(config, deepcopy(checkpoint))
        return self._function(config)

    def kept(self, state: Any) -> Any:
        """Return a copy."""
        return deepcopy(state)


def is_time(value: object) -> bool:
    """Whether a value is a number of seconds, at least 0."""
    seconds = None if isinstance(value, bool) else number(value)
    return seconds is not None and isfinite(seconds) and seconds >= 0
