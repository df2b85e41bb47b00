"""Stop everything when a time budget is used up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dasktune.errors import check
from dasktune.stopper.stopper import Stopper
from dasktune.trial.metrics import number
from dasktune.trial.milestone import Milestone

__all__ = ["TimeoutStopper"]


class _Duration(Protocol):
    """What a `datetime.timedelta` looks like from here."""

    def total_seconds(self) -> float:
        """Return it in seconds."""


class TimeoutStopper(Stopper):
    """End the experiment when it has run for `timeout`, over all its sessions.

    A session counts from the first time that it is told; the time between two sessions, when
    nothing runs, does not count.

    Parameters
    ----------
    timeout : float or timedelta
        Seconds, more than 0.

    Raises
    ------
    ConfigError
        If it is neither a number nor a timedelta, or not more than 0.

    Examples
    --------
    >>> stopper = TimeoutStopper(60)
    >>> stopper.on_time(1000.0)
    >>> stopper.on_time(1060.0)
    >>> stopper.stop_all(), stopper.stop_all_reason()
    (True, 'the time budget of 60 s is used up')
    """

    def __init__(self, timeout: float | _Duration) -> None:
        duration = getattr(timeout, "total_seconds", None)
        given: object = duration() if callable(duration) else timeout
        seconds = None if isinstance(given, bool) else number(given)
        # "Not above 0" would let NaN pass.
        positive = seconds is not None and seconds > 0
        check(positive, "timeout", "seconds or a timedelta, more than 0", timeout)
        self.timeout = seconds or 0.0
        #: Seconds used by the sessions before this one.
        self._before = 0.0
        #: Seconds used by this session.
        self._now = 0.0
        self._started: float | None = None

    @property
    def remaining(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(0.0, self.timeout - self._before - self._now)

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Go on: it is not about one trial."""
        return False

    def next_milestones(self, trial_id: str) -> tuple[Milestone, ...]:
        """Never: it looks at the clock and at no result."""
        return ()

    def stop_all(self) -> bool:
        """Return whether the budget is used up."""
        return self.remaining <= 0

    def stop_all_reason(self) -> str:
        """Return the budget."""
        return f"the time budget of {self.timeout:g} s is used up"

    def on_time(self, now: float) -> None:
        """Count the time; a clock that is set back takes no used time away."""
        if self._started is None:
            self._started = now
        self._now = max(self._now, now - self._started)

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds that are used up."""
        return {"used": self._before + self._now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start a new session with what :meth:`state_dict` gave."""
        self._before = float(state["used"])
        self._now = 0.0
        self._started = None
