"""`ManualClock`: a clock that its user sets."""

from __future__ import annotations

from dasktune.errors import check


class ManualClock:
    """A clock that advances only when it is set.

    Parameters
    ----------
    now : float, default=0.0
        The initial time in seconds.

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
            If `time` is earlier than the current time.
        """
        check(time >= self._now, "time", f"at least {self._now}, the current time", time)
        self._now = time
