"""The notice that a worker was given of its end, and the experiments on the worker that get it.

A notice belongs to the worker and not to an experiment: it may arrive before the first trial. So it
is kept here, and an endpoint that is created later finds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from dasktune.cluster.protocol.wire_messages import WorkerNoticed
from dasktune.trainable.reporting.trial_messages import NoticeAnswer


class _Listener(Protocol):
    """What acts on a notice: an experiment's endpoint on the worker, or a reporter."""

    def on_notice(self, notice: NoticeAnswer) -> None:
        """Act on the notice."""


class WorkerNotices:
    """The notice of one worker; several workers may share a process.

    `of`, `add` and `current` are thread-safe: actors are created in threads. `give` must be called
    on the worker's event loop, as listeners change trials.

    Parameters
    ----------
    timer : callable, default=time.monotonic
        Returns seconds on a monotonic clock.
    """

    # A listener that is added while `give` runs gets the notice once or twice: it is added before
    # `give` copies the listeners, or it finds the notice in `current` afterwards. Getting it twice
    # is harmless.

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self._listeners: WeakSet[Any] = WeakSet()
        #: The end, on the timer's clock, and the reason; None without a notice.
        self._notice: tuple[float, str] | None = None

    @classmethod
    def of(cls, worker: Any) -> WorkerNotices:
        """Return the notices of a worker; the first call creates them."""
        # The worker itself keeps them, so they end with it. `setdefault` is atomic.
        notices: WorkerNotices = vars(worker).setdefault("_dasktune_notices", cls())
        return notices

    def add(self, listener: _Listener) -> None:
        """Give later notices to a listener, for as long as it exists."""
        with self._lock:
            self._listeners.add(listener)

    @property
    def current(self) -> NoticeAnswer | None:
        """The notice with the seconds that are left; None without one or after its time."""
        with self._lock:
            notice = self._notice
        if notice is None or (seconds := notice[0] - self._timer()) <= 0:
            return None
        return NoticeAnswer(seconds=seconds, reason=notice[1])

    def give(self, seconds: float, reason: str) -> None:
        """Give notice: the newest one replaces those before it."""
        with self._lock:
            self._notice = self._timer() + seconds, reason
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener.on_notice(NoticeAnswer(seconds=seconds, reason=reason))


class NoticeReporter:
    """Reports the notices of a worker to the driver of an experiment, for as long as it exists.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    topic : str
        The topic to which the driver listens.
    """

    def __init__(self, worker: Any, topic: str) -> None:
        self._worker = worker
        self._topic = topic

    @classmethod
    def started(cls, worker: Any, topic: str) -> NoticeReporter:
        """Return a reporter that has reported the current notice, if there is one."""
        reporter, notices = cls(worker, topic), WorkerNotices.of(worker)
        notices.add(reporter)
        notice = notices.current
        if notice is not None:
            reporter.on_notice(notice)
        return reporter

    def on_notice(self, notice: NoticeAnswer) -> None:
        """Report a notice; the driver may get it several times."""
        noticed = WorkerNoticed(self._worker.address, notice.seconds, notice.reason)
        # A worker that shuts down may have no connection.
        with suppress(OSError):
            self._worker.log_event(self._topic, noticed.encode())


def give_notice(worker: Any, seconds: float, reason: str) -> None:
    """Give a worker notice of its end. Thread-safe.

    Its trials save, leave and resume elsewhere, and it gets no others until the time has passed.

    Parameters
    ----------
    worker : distributed.Worker
        The worker of this process.
    seconds : float
        Seconds until its end.
    reason : str
        Why it ends.
    """
    worker.loop.add_callback(WorkerNotices.of(worker).give, seconds, reason)
