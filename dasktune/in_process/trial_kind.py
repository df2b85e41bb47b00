"""`TrialKind`, which defines steps and checkpoints of simulated trials, and `GeneratorTrials`."""

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

_SHAPE: Final = "(metrics, seconds) or (metrics, seconds, checkpoint)"
_HINT: Final = f"Yield {_SHAPE}."

#: ``fn(config)`` or ``fn(config, checkpoint)`` yields ``(metrics, seconds)`` or
#: ``(metrics, seconds, checkpoint)``.
SimulatedTrainable = Callable[..., Generator[tuple[Any, ...], None, None]]

#: The steps of a trial: the metrics, the seconds and the state to save of each step.
Steps: TypeAlias = Generator[tuple[Any, ...], None, None]


@dataclass(frozen=True, slots=True)
class Step:
    """A checked step of a trial."""

    metrics: Mapping[str, Any]
    seconds: float
    checkpoint: Any


class TrialKind(ABC):
    """Defines what a step of a trial does, and how its checkpoints are kept.

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

    #: Whether a trial can resume from a checkpoint, so that it may yield states to save.
    takes_checkpoints = True
    #: Whether a state is saved only on demand: by ``should_checkpoint=True`` in the metrics of a
    #: step, or in memory at a pause.
    saves_on_demand = False
    #: Whether a trial is saved before it is stopped.
    saves_at_end = False
    #: Whether a trial takes its next step only when the next event is requested, so that its last
    #: event has been journaled by then. Otherwise it takes the step at once, before the commands
    #: that follow from the event.
    takes_turns = False

    @abstractmethod
    def begin(
        self, config: dict[str, Any], checkpoint: Any, is_milestone: Callable[[Mapping[str, Any]], bool]
    ) -> Steps:
        """Return the generator of a trial's steps; the trial ends when it is exhausted.

        Parameters
        ----------
        config : dict
            The trial's own copy of its configuration.
        checkpoint : object
            The state to resume from, as :meth:`kept` returned it; None at the first start.
        is_milestone : callable
            Whether the scheduler decides about a result.
        """

    @abstractmethod
    def kept(self, state: Any) -> Any:
        """Return a checkpoint of a state, which later changes of the state do not affect.

        Parameters
        ----------
        state : object
            The state that the last step yielded.
        """

    def checked(self, yielded: Any) -> Step:
        """Check a yielded value, and return it as a step.

        Parameters
        ----------
        yielded : object
            The value that a trial yielded.

        Raises
        ------
        ConfigError
            If `yielded` is not a valid step; the trial then fails with this error.
        """
        shaped = isinstance(yielded, tuple) and len(yielded) in (2, 3)
        check(shaped, "what a simulated trainable yields", _SHAPE, yielded)
        metrics, seconds, checkpoint = (*yielded, None)[:3]
        check(isinstance(metrics, Mapping), "metrics", "a dict", metrics, _HINT)
        check(is_time(seconds), "seconds", "a number, at least 0", seconds, _HINT)
        check(
            checkpoint is None or self.takes_checkpoints,
            "checkpoint",
            "None, as the trainable takes no checkpoint",
            checkpoint,
            "Write def trainable(config, checkpoint).",
        )
        return Step(metrics, float(seconds), checkpoint)


class GeneratorTrials(TrialKind):
    """Trials of a generator function.

    Parameters
    ----------
    function : callable
        The function, as for `SimulatedTrialExecutor`.
    saves_on_demand : bool
        Whether a checkpoint is saved only on demand.

    Raises
    ------
    ConfigError
        If `function` is not such a generator function.
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
        self, config: dict[str, Any], checkpoint: Any, is_milestone: Callable[[Mapping[str, Any]], bool]
    ) -> Steps:
        """Return a trial's steps, with a copy of the checkpoint, because others may use it too."""
        if self.takes_checkpoints:
            return self._function(config, deepcopy(checkpoint))
        return self._function(config)

    def kept(self, state: Any) -> Any:
        """Return a copy of a state."""
        return deepcopy(state)


def is_time(value: object) -> bool:
    """Whether a value is a number of seconds, at least 0."""
    seconds = None if isinstance(value, bool) else number(value)
    return seconds is not None and isfinite(seconds) and seconds >= 0
