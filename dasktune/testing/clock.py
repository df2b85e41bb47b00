"""Time that moves only when it is told to."""

from __future__ import annotations

from dasktune.errors import check

__all__ = ["ManualClock"]


class ManualClock:
    """A clock for tests and simulations.

    Parameters
    ----------
    now : float, default=0.0
        Where it starts, in seconds.

    Examples
    --------
    >>> clock = ManualClock()
    >>> clock.advance_to(2.5)
    >>> clock.now()
    2.5
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance_to(self, time: float) -> None:
        """Set the clock forward to `time` seconds.

        Raises
        ------
        ConfigError
            If that is in the past.
        """
        check(time >= self._now, "time", f"at least {self._now}, as clocks do not go back", time)
        self._now = time
