"""Work on the storage beside user code: uploads, one after the other, in a thread of the trial."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Uploader"]


class Uploader:
    """Uploads in the order in which it is asked to, and not many at a time; thread-safe.

    The first failure ends it: what waits behind that is dropped, and whoever asks for more is told.
    It has no thread before there is something to do.

    Parameters
    ----------
    name : str
        Of its thread.
    on_failure : callable
        Called in its thread when an upload has failed; from then on :meth:`check` raises.
    limit : int, default=2
        Uploads that may be unfinished while user code goes on. Each has a copy on the local disk.
    """

    def __init__(self, name: str, on_failure: Callable[[], None], *, limit: int = 2) -> None:
        self._name = name
        self._on_failure = on_failure
        self._limit = limit
        self._changed = threading.Condition()
        #: Each with whether it is an upload; others may take their time, and nobody waits for them.
        self._queue: deque[tuple[Callable[[], None], bool]] = deque()
        #: Uploads that have not ended.
        self._unfinished = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def check(self) -> None:
        """Raise what an upload has failed with. Takes no lock."""
        if self._failure is not None:
            raise self._failure

    def wait_for_room(self) -> None:
        """Wait until another upload may be added. Only a failure of one before can prevent it then.

        Raises
        ------
        BaseException
            What an upload has failed with.
        RuntimeError
            If the system has no thread to spare.
        """
        self._wait_for(self._limit - 1)
        with self._changed:
            self._start()

    def flush(self) -> None:
        """Wait until all uploads have ended.

        Raises
        ------
        BaseException
            What one of them has failed with.
        """
        self._wait_for(0)

    def upload(self, work: Callable[[], None]) -> None:
        """Do this when the uploads before it have ended.

        Parameters
        ----------
        work : callable
            Whatever it raises is the failure of the uploader.

        Raises
        ------
        BaseException
            What an upload has failed with.
        """
        self._add(work, is_upload=True)

    def do(self, work: Callable[[], None]) -> None:
        """Do something else in its turn, for which only :meth:`close` and later uploads wait.

        Parameters
        ----------
        work : callable
            Must not raise.
        """
        self._add(work, is_upload=False)

    def close(self) -> None:
        """Wait until nothing is left to do, and end the thread.

        Raises
        ------
        BaseException
            What an upload has failed with.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            # Its traceback would keep what user code held, by way of this frame.
            del failure

    def _wait_for(self, unfinished: int) -> None:
        # Nearly always there is none: no result should pay for the lock.
        if self._unfinished > unfinished:
            with self._changed:
                self._changed.wait_for(lambda: self._unfinished <= unfinished)
        self.check()

    def _add(self, work: Callable[[], None], *, is_upload: bool) -> None:
        with self._changed:
            self.check()
            self._start()
            self._queue.append((work, is_upload))
            self._unfinished += is_upload
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while self._wait_for_work():
            work, is_upload = self._queue.popleft()
            try:
                work()
            except BaseException as error:
                self._fail(error)
                return
            with self._changed:
                self._unfinished -= is_upload
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return bool(self._queue)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._queue.clear()
        self._on_failure()
        with self._changed:
            # Only now: who has waited must find done what the failure entails.
            self._unfinished = 0
            self._changed.notify_all()
