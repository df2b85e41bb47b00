"""TimeoutStopper: end the experiment when its time budget is used up."""

from __future__ import annotations

import time  # noqa: TID251 - an experiment reports its time, so it never reads the clock
from collections.abc import Mapping
from typing import Any, Protocol

from dasktune.errors import check
from dasktune.stopper.stopper import Stopper
from dasktune.trial.metrics import number
from dasktune.trial.milestone import Milestone


class _Duration(Protocol):
    """The interface of `datetime.timedelta` that is used here."""

    def total_seconds(self) -> float:
        """Return the duration in seconds."""


class TimeoutStopper(Stopper):
    """End the experiment when it has run for `timeout`, summed over all its sessions.

    A session starts with its first call of :meth:`on_time`. The time between two sessions does not
    count. Outside of an experiment, where nothing calls `on_time`, :meth:`stop_all` reads the
    machine's clock, and the budget counts from its first call, as in Ray Tune.

    Parameters
    ----------
    timeout : float or timedelta
        The time budget, more than 0; a float is in seconds.

    Raises
    ------
    ConfigError
        If `timeout` is neither a number nor a timedelta, or not above 0.

    Examples
    --------
    >>> stopper = TimeoutStopper(60)
    >>> stopper.on_time(1000.0)
    >>> stopper.on_time(1060.0)
    >>> stopper.stop_all(), stopper.stop_all_reason()
    (True, 'the time budget of 60 s is used up')
    """

    #: Whether `on_time` has been called.
    _gets_time = False

    def __init__(self, timeout: float | _Duration) -> None:
        duration = getattr(timeout, "total_seconds", None)
        given: object = duration() if callable(duration) else timeout
        seconds = None if isinstance(given, bool) else number(given)
        # `not seconds <= 0` would accept NaN.
        positive = seconds is not None and seconds > 0
        check(positive, "timeout", "seconds or a timedelta, more than 0", timeout)
        self.timeout = seconds or 0.0
        #: Seconds used by the sessions before this one.
        self._before = 0.0
        #: Seconds used by this session.
        self._now = 0.0
        #: The time of this session's first call of on_time().
        self._started: float | None = None

    @property
    def remaining(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(0.0, self.timeout - self._before - self._now)

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return False: this stopper ends only the whole experiment."""
        return False

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Return no milestones: this stopper does not depend on results."""
        return ()

    def stop_all(self) -> bool:
        """Return whether the budget is used up."""
        if not self._gets_time:
            self._count(time.monotonic())
        return self.remaining <= 0

    def stop_all_reason(self) -> str:
        """Return the budget."""
        return f"the time budget of {self.timeout:g} s is used up"

    def on_time(self, now: float) -> None:
        """Update the used time, which never decreases, even if the clock is set back."""
        if not self._gets_time:
            # The time so far was measured on another clock.
            self.load_state_dict(self.state_dict())
            self._gets_time = True
        self._count(now)

    def _count(self, now: float) -> None:
        if self._started is None:
            self._started = now
        self._now = max(self._now, now - self._started)

    def state_dict(self) -> dict[str, Any]:
        """Return the used seconds."""
        return {"used": self._before + self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start a new session from the state that :meth:`state_dict` returned."""
        self._before = float(state["used"])
        self._now = 0.0
        self._started = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy, perhaps in another process, begins a session of its own.
        used = self._before + self._now
        return {**self.__dict__, "_before": used, "_now": 0.0, "_started": None, "_gets_time": False}
