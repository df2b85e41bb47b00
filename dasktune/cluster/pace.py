"""How long trials take, and so how many of them a slot should be given at a time."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

#: Seconds of work that a slot is given ahead, at most. The next trials are then there before it has
#: nothing to do, and hardly kept from another slot that could take them.
_WORK_AHEAD: Final = 0.05

#: Most trials of a slot, the one that runs included.
_DEEPEST: Final = 16

#: Weight of the newest trial in the mean.
_WEIGHT: Final = 0.2

#: Seconds of a trial after which none is handed ahead, whatever those before it took.
_LONG: Final = 0.1

#: What a trial is taken to have lasted if it did not end well; good for more than ten others.
_AFTER_TROUBLE: Final = 1.0


class Pace:
    """Learns from each trial that has ended.

    Examples
    --------
    >>> pace = Pace()
    >>> pace.depth
    1
    >>> pace.note(0.01)
    >>> pace.depth
    5
    >>> pace.note(3.0)
    >>> pace.depth
    1
    """

    def __init__(self) -> None:
        self._mean = 0.0
        #: How many trials a slot may have, the one that runs included.
        self.depth = 1

    def pause(self) -> None:
        """Hand none ahead for a while: one of them did not end well, and it must show which."""
        self.note(_AFTER_TROUBLE)

    def note(self, seconds: float) -> None:
        """Take note of how long a trial ran."""
        if seconds > _LONG or not self._mean:
            self._mean = seconds
        else:
            self._mean += _WEIGHT * (seconds - self._mean)
        self._mean = max(self._mean, 1e-6)
        self.depth = min(_DEEPEST, max(1, int(_WORK_AHEAD / self._mean)))
