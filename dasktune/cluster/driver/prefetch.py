"""Computes how many trials to queue on an actor, from the durations of the trials before."""

from __future__ import annotations

from typing import Final

__all__ = ["PrefetchDepth"]

#: Largest number of seconds of work to queue on an actor. It is enough for the next trial to arrive
#: before the actor is idle, and so little that another actor could hardly start that trial sooner.
_WORK_AHEAD: Final = 0.05

#: Largest number of trials on an actor, the running one included.
_DEEPEST: Final = 16

#: Weight of the newest trial in the mean.
_WEIGHT: Final = 0.2

#: Seconds that the last trial may have taken. After a longer one no trial is prefetched, however
#: short the trials before it were.
_LONG: Final = 0.1

#: Seconds that are recorded as the duration of a failed trial. It takes more than ten short trials
#: to bring the mean down again.
_AFTER_TROUBLE: Final = 1.0


class PrefetchDepth:
    """The prefetch depth, updated at the end of each trial.

    The client's loop updates it. The runner's thread reads `depth` without a lock: it is one int.

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
        """Prefetch nothing for a while after a failure.

        If several trials are queued when a worker dies, it is unclear which trial caused that.
        """
        self.observe(_AFTER_TROUBLE)

    def observe(self, seconds: float) -> None:
        """Note the duration of a trial."""
        if seconds > _LONG or not self._mean:
            self._mean = seconds
        else:
            self._mean += _WEIGHT * (seconds - self._mean)
        self._mean = max(self._mean, 1e-6)
        self.depth = min(_DEEPEST, max(1, int(_WORK_AHEAD / self._mean)))
