"""FunctionStopper: stop a trial by a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import check
from dasktune.space.checks import accepts_arguments
from dasktune.stopper.stopper import Stopper


class FunctionStopper(Stopper):
    """Stop a trial when ``function(trial_id, result)`` is true.

    Only the truth of the returned value counts: a numpy bool is accepted, and None means continue.

    Parameters
    ----------
    function : callable
        Called with the trial's id and its result, as in :meth:`Stopper.__call__`. Nested metrics
        have flat names such as ``n/a``, and can also be read as reported.

    Raises
    ------
    ConfigError
        If `function` cannot be called with these arguments, or is a class, a generator function or
        a coroutine function, whose return value would always be true.

    Examples
    --------
    >>> stopper = FunctionStopper(lambda trial_id, result: result["loss"] < 0.1)
    >>> stopper("a_00000", {"loss": 0.05})
    True
    """

    def __init__(self, function: Callable[[str, Mapping[str, Any]], Any]) -> None:
        hint = "Write def stop(trial_id, result): return result['loss'] < 0.1"
        rule = "a function of (trial_id, result) that returns a bool"
        plain = not (
            isinstance(function, type)
            or inspect.isgeneratorfunction(function)
            or inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        )
        check(plain and accepts_arguments(function, "", {}), "stop", rule, function, hint)
        self.function = function

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return the truth value of the function's result."""
        return bool(self.function(trial_id, result))

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the name of the function."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"{name}(trial_id, result) is true"
