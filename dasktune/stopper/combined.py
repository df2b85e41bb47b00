"""CombinedStopper, and the conversion of `stop` arguments to stoppers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.stopper.criteria import CriteriaStopper
from dasktune.stopper.function_stopper import FunctionStopper
from dasktune.stopper.stopper import NoopStopper, Stopper
from dasktune.trial.milestone import Milestone

#: The accepted types of the `stop` argument of `RunConfig`.
StopRule = (
    Stopper
    | Mapping[str, float]
    | Callable[[str, Mapping[str, Any]], Any]
    | list[Any]
    | tuple[Any, ...]
    | None
)


class CombinedStopper(Stopper):
    """Stop when any of several stoppers returns True. Every stopper gets every result.

    Parameters
    ----------
    *stoppers : Stopper
        The stoppers.

    Raises
    ------
    ConfigError
        If an argument is not a stopper.

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
        #: The stoppers that returned True in the last call.
        self._said_stop: list[Stopper] = []

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Call every stopper, and return whether any of them returned True."""
        self._said_stop = [stopper for stopper in self.stoppers if stopper(trial_id, result)]
        return bool(self._said_stop)

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return the milestones of all stoppers."""
        return tuple(
            milestone for stopper in self.stoppers for milestone in stopper.next_milestones(trial_id)
        )

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        """Return the reasons of the stoppers that returned True in the last call."""
        return " and ".join(stopper.reason(trial_id, result) for stopper in self._said_stop)

    def stop_all(self) -> bool:
        """Return whether any stopper ends the experiment."""
        return any(stopper.stop_all() for stopper in self.stoppers)

    def stop_all_reason(self) -> str:
        """Return the reasons of the stoppers that end the experiment."""
        ending = [stopper for stopper in self.stoppers if stopper.stop_all()]
        return " and ".join(stopper.stop_all_reason() for stopper in ending)

    def on_time(self, now: float) -> None:
        """Pass the time to every stopper."""
        for stopper in self.stoppers:
            stopper.on_time(now)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the stoppers, in order."""
        return {"stoppers": [stopper.state_dict() for stopper in self.stoppers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved with a different number of stoppers.
        """
        states = state["stoppers"]
        rule = f"as long as the {len(states)} stoppers that the experiment was saved with"
        check(len(states) == len(self.stoppers), "stop", rule, self.stoppers)
        for stopper, own in zip(self.stoppers, states, strict=True):
            stopper.load_state_dict(own)


def as_stopper(stop: StopRule) -> Stopper:
    """Convert a `stop` argument to a stopper.

    Parameters
    ----------
    stop : None, dict, callable, Stopper, or a list or tuple of these
        No rule; a dict of metrics and values at or above which a trial stops; a function of
        ``(trial_id, result)``; a stopper; or several of these, any of which stops.

    Raises
    ------
    ConfigError
        If `stop` is anything else.

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
