"""Several stoppers as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.stopper.criteria import CriteriaStopper
from dasktune.stopper.function import FunctionStopper
from dasktune.stopper.stopper import NoopStopper, Stopper
from dasktune.trial.milestone import Milestone

__all__ = ["CombinedStopper", "StopRule", "as_stopper"]

#: What users may write about stopping.
StopRule = (
    Stopper
    | Mapping[str, float]
    | Callable[[str, Mapping[str, Any]], Any]
    | list[Any]
    | tuple[Any, ...]
    | None
)


class CombinedStopper(Stopper):
    """Stop when any of several stoppers says so. Each is asked each time, so none misses a result.

    Parameters
    ----------
    *stoppers : Stopper
        The members.

    Raises
    ------
    ConfigError
        If one is no stopper.

    Examples
    --------
    >>> from dasktune.stopper import MaximumIterationStopper, TimeoutStopper
    >>> stopper = CombinedStopper(MaximumIterationStopper(1), TimeoutStopper(3600))
    >>> stopper("a_00000", {}), stopper.reason("a_00000", {})
    (True, 'max_iter=1 results are in')
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for i, stopper in enumerate(stoppers):
            given: object = stopper
            check(isinstance(given, Stopper), f"stoppers[{i}]", "a Stopper", stopper)
        self.stoppers = stoppers
        #: Who said stop in the last call.
        self._said_stop: list[Stopper] = []

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Ask every member."""
        self._said_stop = [stopper for stopper in self.stoppers if stopper(trial_id, result)]
        return bool(self._said_stop)

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return the milestones of all members."""
        return tuple(
            milestone
            for stopper in self.stoppers
            for milestone in stopper.next_milestones(trial_id)
        )

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the reasons of the members that said so in the last call."""
        return " and ".join(stopper.reason(trial_id, result) for stopper in self._said_stop)

    def stop_all(self) -> bool:
        """Return whether any member wants everything to end."""
        return any(stopper.stop_all() for stopper in self.stoppers)

    def stop_all_reason(self) -> str:
        """Return the reasons of the members that want everything to end."""
        enough = [stopper for stopper in self.stoppers if stopper.stop_all()]
        return " and ".join(stopper.stop_all_reason() for stopper in enough)

    def on_time(self, now: float) -> None:
        """Tell every member."""
        for stopper in self.stoppers:
            stopper.on_time(now)

    def state_dict(self) -> dict[str, Any]:
        """Return the members' states, in order."""
        return {"stoppers": [stopper.state_dict() for stopper in self.stoppers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from another number of stoppers.
        """
        states = state["stoppers"]
        rule = f"as long as the {len(states)} stoppers that the experiment was saved with"
        check(len(states) == len(self.stoppers), "stop", rule, self.stoppers)
        for stopper, own in zip(self.stoppers, states, strict=True):
            stopper.load_state_dict(own)


def as_stopper(stop: StopRule) -> Stopper:
    """Return what the user wrote about stopping as a stopper.

    Parameters
    ----------
    stop : None, dict, callable, Stopper, or a list or tuple of these
        Nothing; metrics and the least values that stop a trial; a function of
        ``(trial_id, result)``; or any of several.

    Raises
    ------
    ConfigError
        If it is anything else.

    Examples
    --------
    >>> as_stopper({"training_iteration": 10})("a_00000", {"training_iteration": 9})
    False
    """
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return CriteriaStopper(stop)
    if isinstance(stop, list | tuple):
        return CombinedStopper(*map(as_stopper, stop))
    if callable(stop):
        return FunctionStopper(stop)
    raise ConfigError(
        f"stop must be None, a dict, a function, a Stopper or a list of these, got {stop!r}. "
        "Write stop={'training_iteration': 10}"
    )
