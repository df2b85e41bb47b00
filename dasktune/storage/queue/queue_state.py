"""The states of a queued experiment, and the order in which queued experiments start.

Pure functions of what the files of the queue say. Time arrives as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Drivers of one experiment that may die one after the other without a new result.
#: The experiment has failed then: it probably kills its drivers.
MOST_DEATHS: Final = 10
#: Drivers of one experiment that may fail with the same kind of error, of which it is not known
#: whether it may pass, without a new result. The experiment has failed then.
MOST_FAILURES: Final = 20


class QueueState(Enum):
    """The state of an experiment in a queue."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Its files could not be read this time. No driver starts, and a later look may succeed.
    UNKNOWN = "unknown"

    @property
    def is_over(self) -> bool:
        """Whether no driver will run the experiment again."""
        return self in OVER


#: The states in which no driver will run the experiment again.
OVER: Final = (QueueState.FINISHED, QueueState.FAILED, QueueState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """What is known of an experiment in a queue.

    Parameters
    ----------
    entry_id : str
        Identifies the experiment in its queue.
    name : str
        The experiment's name as it was submitted.
    priority : float, default=0.0
        The strict class.
    weight : float, default=1.0
        How fast the experiment ages in its class.
    submitted : float, default=0.0
        Wall clock time of the submission, in seconds since 1970.
    state : QueueState, default=QueueState.QUEUED
        The state.
    reason : str, default=""
        Why the experiment has failed or cannot be read, or why it could not start the last time.
    directory : str, default=""
        The experiment's directory; empty before the first start.
    is_recorded : bool, default=False
        Whether a file says how the experiment has ended, so that its state never changes again.
    ended : float or None, default=None
        Wall clock time of the end or of the cancellation, in seconds since 1970. None if it is not
        over, or if the time is unknown.
    """

    entry_id: str
    name: str
    priority: float = 0.0
    weight: float = 1.0
    submitted: float = 0.0
    state: QueueState = QueueState.QUEUED
    reason: str = ""
    directory: str = ""
    is_recorded: bool = False
    ended: float | None = None


def state_of(outcome: QueueState | None, *, is_driven: bool, is_cancelled: bool) -> QueueState:
    """Return the state of an experiment.

    A driver that takes up a cancelled experiment ends it, so a cancelled experiment without a
    driver is over although no driver has recorded its end.

    Parameters
    ----------
    outcome : QueueState or None
        The recorded end.
    is_driven : bool
        Whether a living driver holds the lock of the experiment.
    is_cancelled : bool
        Whether the user has cancelled the experiment.

    Examples
    --------
    >>> state_of(None, is_driven=True, is_cancelled=True)
    <QueueState.RUNNING: 'running'>
    """
    if outcome is not None:
        return outcome
    if is_driven:
        return QueueState.RUNNING
    return QueueState.CANCELLED if is_cancelled else QueueState.QUEUED


def start_order(entries: Iterable[QueueStatus], now: float) -> list[QueueStatus]:
    """Return the queued experiments in the order in which they start.

    All experiments of a higher priority come before those of a lower one. In a class, the product
    of weight and age decides, so that an experiment of weight 2 has to wait half as long as an
    older one of weight 1, and each experiment comes first at some time.

    Parameters
    ----------
    entries : iterable of QueueStatus
        The experiments; those that are not queued are left out.
    now : float
        Wall clock time in seconds since 1970. The clocks of the submitting machines may be ahead.

    Examples
    --------
    >>> old = QueueStatus(entry_id="1", name="old", submitted=0.0)
    >>> heavy = QueueStatus(entry_id="2", name="heavy", submitted=60.0, weight=3)
    >>> [one.name for one in start_order([old, heavy], now=80.0)]
    ['old', 'heavy']
    >>> [one.name for one in start_order([old, heavy], now=100.0)]
    ['heavy', 'old']
    """

    def key(entry: QueueStatus) -> tuple[float, float, float, str]:
        age = max(0.0, now - entry.submitted)
        return (-entry.priority, -entry.weight * age, entry.submitted, entry.entry_id)

    return sorted((one for one in entries if one.state is QueueState.QUEUED), key=key)


def count_deaths(numbers: Sequence[int | None]) -> int:
    """Return how many of the last drivers died without a new result.

    An unknown number neither counts as a death nor ends the row. If the number of now is unknown,
    no driver counts.

    Parameters
    ----------
    numbers : sequence of int or None
        Results that the experiment had when each driver that has died took it up, oldest first, and
        last the results that it has now. None if unknown.

    Examples
    --------
    >>> count_deaths([0, 7, 7, 7]), count_deaths([7, 9]), count_deaths([0])
    (2, 0, 0)
    >>> count_deaths([7, None, 7]), count_deaths([None, None])
    (1, 0)
    """
    *before, now = numbers
    if now is None:
        return 0
    deaths = 0
    for number in reversed(before):
        if number is not None and number != now:
            break
        deaths += number is not None
    return deaths
