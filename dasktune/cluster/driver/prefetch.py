"""Decides how many trials an actor gets, and when, from the durations of the trials before."""

from __future__ import annotations

from typing import Final

#: Largest number of seconds of work to queue on an actor. It is enough for the next trial to arrive
#: before the actor is idle, and so little that another actor could hardly start that trial sooner.
_WORK_AHEAD: Final = 0.05

#: Largest number of trials on an actor, the running one included.
_DEEPEST: Final = 16

#: Weight of the newest trial in the means.
_WEIGHT: Final = 0.2

#: Seconds that the last trial may have taken. After a longer one no trial is prefetched by number,
#: however short the trials before it were. Trials that differ by more have no usual duration.
_LONG: Final = 0.1

#: Mean deviation, in seconds, up to which the end of a trial can be predicted.
STEADY_S: Final = 0.02

#: Seconds that are recorded as the duration of a failed trial. It takes more than ten short trials
#: to bring the mean down again.
_AFTER_TROUBLE: Final = 1.0


class PrefetchPolicy:
    """When an actor gets its next trial before the current one has ended.

    While trials are short, an actor gets several at once. While they are longer and all take about
    the same time, it gets the next one shortly before the predicted end of the current one.

    The client's loop updates it. The runner's thread reads `depth` without a lock: it is one int.

    Parameters
    ----------
    steady_s : float, default=0.02
        Mean deviation, in seconds, up to which the end of a trial can be predicted.

    Examples
    --------
    >>> prefetch = PrefetchPolicy()
    >>> prefetch.depth
    1
    >>> prefetch.observe(0.01)
    >>> prefetch.depth
    5
    >>> prefetch.observe(3.0)
    >>> prefetch.depth
    1
    >>> prefetch.next_due_s is None
    True
    >>> for _ in range(10):
    ...     prefetch.observe(3.0)
    >>> prefetch.next_due_s
    2.95
    """

    def __init__(self, *, steady_s: float = STEADY_S) -> None:
        self._steady_s = steady_s
        self._mean = 0.0
        #: The usual duration, and the mean deviation from it.
        self._usual, self._deviation = 0.0, _LONG
        #: How many trials an actor may have, the running one included.
        self.depth = 1

    @property
    def next_due_s(self) -> float | None:
        """Seconds from the start of a trial until its actor should get the next one.

        None if it gets none before the end: trials are so short that `depth` counts, or they are
        too different.
        """
        if self.depth > 1 or self._deviation > self._steady_s:
            return None
        return max(0.0, self._usual - _WORK_AHEAD)

    @property
    def due_for_s(self) -> float:
        """Seconds after `next_due_s` in which it may. Later the prediction was wrong."""
        return 2 * _WORK_AHEAD

    def pause(self) -> None:
        """Prefetch nothing for a while after a failure.

        If several trials are queued when a worker dies, it is unclear which trial caused that.
        """
        self._deviation = _LONG
        self._note_mean(_AFTER_TROUBLE)

    def observe(self, seconds: float) -> None:
        """Note the duration of a trial."""
        difference = abs(seconds - self._usual)
        if difference > _LONG:
            self._usual, self._deviation = seconds, _LONG
        else:
            self._usual += _WEIGHT * (seconds - self._usual)
            self._deviation += _WEIGHT * (difference - self._deviation)
        self._note_mean(seconds)

    def _note_mean(self, seconds: float) -> None:
        if seconds > _LONG or not self._mean:
            self._mean = seconds
        else:
            self._mean += _WEIGHT * (seconds - self._mean)
        self._mean = max(self._mean, 1e-6)
        self.depth = min(_DEEPEST, max(1, int(_WORK_AHEAD / self._mean)))
