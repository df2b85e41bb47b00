"""MaximumIterationStopper: stop a trial after a number of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.errors import check
from dasktune.stopper.stopper import Stopper


class MaximumIterationStopper(Stopper):
    """Stop a trial when it has reported `max_iter` results.

    The stopper counts the results that it gets. To stop at a value of ``training_iteration``, which
    continues when a trial is restored from a checkpoint, use ``stop={"training_iteration": 10}``.

    Parameters
    ----------
    max_iter : int
        Number of results of each trial, at least 1.

    Raises
    ------
    ConfigError
        If `max_iter` is not an int, or below 1.

    Examples
    --------
    >>> stopper = MaximumIterationStopper(2)
    >>> stopper("a_00000", {}), stopper("a_00000", {}), stopper("a_00001", {})
    (False, True, False)
    """

    def __init__(self, max_iter: int) -> None:
        valid = type(max_iter) is int and max_iter >= 1
        check(valid, "max_iter", "an int, at least 1", max_iter)
        self.max_iter = max_iter
        #: ``{trial_id: results so far}``
        self._results: dict[str, int] = {}

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Count the result, and return whether the trial has reached the limit."""
        self._results[trial_id] = self._results.get(trial_id, 0) + 1
        return self._results[trial_id] >= self.max_iter

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the limit."""
        return f"max_iter={self.max_iter} results are in"

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"results": dict(self._results)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._results = dict(state["results"])
