"""How many trials to queue ahead on an actor, learned from how long trials take."""

from __future__ import annotations

from typing import Final

__all__ = ["PrefetchDepth"]

#: Seconds of work to queue ahead on an actor, at most. The next trial is then there before the
#: actor is idle, and is hardly kept from another actor that could run it.
_WORK_AHEAD: Final = 0.05

#: Largest number of trials on an actor, the running one included.
_DEEPEST: Final = 16

#: Weight of the newest trial in the mean.
_WEIGHT: Final = 0.2

#: Seconds of a trial after which none is prefetched, however short the trials before it were.
_LONG: Final = 0.1

#: The duration that counts for a trial that failed; it outweighs more than ten others.
_AFTER_TROUBLE: Final = 1.0


class PrefetchDepth:
    """The prefetch depth, updated at the end of each trial.

    The client's loop updates it and the runner's thread reads `depth`, a single int.

    Examples
    --------
    >>> prefetch = PrefetchDepth()
    >>> prefetch.depth
    1
    >>> prefetch.observe(0.01)
    >>> prefetch.depth
    5
    >>> prefetch.observe(3.0)
    >>> prefetch.depth
    1
    """

    def __init__(self) -> None:
        self._mean = 0.0
        #: How many trials an actor may have, the running one included.
        self.depth = 1

    def pause(self) -> None:
        """Prefetch none for a while: of several queued trials, it is unclear which one failed."""
        self.observe(_AFTER_TROUBLE)

    def observe(self, seconds: float) -> None:
        """Note the duration of a trial."""
        if seconds > _LONG or not self._mean:
            self._mean = seconds
        else:
            self._mean += _WEIGHT * (seconds - self._mean)
        self._mean = max(self._mean, 1e-6)
        self.depth = min(_DEEPEST, max(1, int(_WORK_AHEAD / self._mean)))
