"""How often the state of an experiment is written down."""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["SnapshotPace"]

#: Seconds between two snapshots that cost nothing.
_LEAST: Final = 10.0
#: A snapshot may take a twentieth of the time.
_SHARE: Final = 0.05


class SnapshotPace:
    """Says when the next snapshot is due.

    Parameters
    ----------
    period : float or "auto"
        Seconds between two; "auto" is at least 10, and more if they take more than 5 % of the time.

    Examples
    --------
    >>> pace = SnapshotPace("auto")
    >>> [pace.is_due(now, seconds) for now, seconds in [(0, 0), (10, 0), (20, 1), (30, 1)]]
    [False, True, False, True]
    """

    def __init__(self, period: float | Literal["auto"]) -> None:
        self._period = period
        self._last: float | None = None

    def is_due(self, now: float, seconds: float) -> bool:
        """Whether one is due now; then it counts as taken. The first call only starts the clock.

        Parameters
        ----------
        now : float
            Seconds on the runner's clock.
        seconds : float
            How long the last one took.
        """
        if self._last is None:
            self._last = now
        period = max(_LEAST, seconds / _SHARE) if self._period == "auto" else self._period
        if now - self._last < period:
            return False
        self._last = now
        return True
