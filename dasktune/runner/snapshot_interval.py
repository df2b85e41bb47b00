"""The interval between two snapshots of an experiment's state."""

from __future__ import annotations

from typing import Final, Literal

#: Shortest interval in seconds.
_LEAST: Final = 10.0
#: Share of the time that snapshots may take.
_SHARE: Final = 0.05


class SnapshotInterval:
    """Decides when the next snapshot is due.

    Parameters
    ----------
    period : float or "auto"
        Seconds between two snapshots. "auto" is at least 10, and long enough that snapshots take at
        most 5 % of the time.

    Examples
    --------
    >>> interval = SnapshotInterval("auto")
    >>> [interval.is_due(now, seconds) for now, seconds in [(0, 0), (10, 0), (20, 1), (30, 1)]]
    [False, True, False, True]
    """

    def __init__(self, period: float | Literal["auto"]) -> None:
        self._period = period
        self._last: float | None = None

    def is_due(self, now: float, seconds: float) -> bool:
        """Return whether a snapshot is due, and if so, begin the next interval.

        The first call begins the first interval.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        seconds : float
            How long the last snapshot took.
        """
        if self._last is None:
            self._last = now
        period = max(_LEAST, seconds / _SHARE) if self._period == "auto" else self._period
        if now - self._last < period:
            return False
        self._last = now
        return True
