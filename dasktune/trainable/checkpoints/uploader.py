"""Uploads checkpoints in a thread of the trial while user code continues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Uploader:
    """Runs uploads in order, with a bound on how many may be unfinished; thread-safe.

    The first upload that fails ends the uploader: queued uploads are dropped, and later calls raise
    the failure. The thread starts with the first work.

    Parameters
    ----------
    name : str
        The name of its thread.
    on_failure : callable
        Called in its thread when an upload has failed; from then on :meth:`check` raises.
    limit : int, default=2
        Number of uploads that may be unfinished while user code continues. Each has a copy on the
        local disk.
    """

    # The reporting thread adds work, the uploader's thread does it. `_failure` and `_unfinished`
    # are read without the lock, which is safe because of the order of the writes:
    #
    # - Only the reporting thread increases `_unfinished`. If it reads 0, its uploads have ended.
    # - `_fail` sets `_failure`, then calls `on_failure`, then sets `_unfinished` to 0. So a caller
    #   of `flush` wakes up when the held messages were withdrawn, and `check` raises.
    # - No work is added between the failure and the clearing of the queue: both happen under the
    #   lock that `_add` takes, and `_add` checks for the failure under that lock.
    #
    # After `close` the thread is gone, and added work would never run. The session is closed before
    # that, so no report adds work.

    def __init__(self, name: str, on_failure: Callable[[], None], *, limit: int = 2) -> None:
        self._name = name
        self._on_failure = on_failure
        self._limit = limit
        self._changed = threading.Condition()
        #: Work, and whether it is an upload: :meth:`flush` does not wait for other work.
        self._queue: deque[tuple[Callable[[], None], bool]] = deque()
        #: Uploads that have not ended.
        self._unfinished = 0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def check(self) -> None:
        """Raise the failure of an upload, if there is one. Takes no lock."""
        if self._failure is not None:
            raise self._failure

    def wait_for_room(self) -> None:
        """Wait until another upload may be added.

        The thread runs when this returns, so only the failure of an earlier upload can prevent the
        next one.

        Raises
        ------
        BaseException
            The failure of an upload.
        RuntimeError
            If the system cannot start another thread.
        """
        self._wait_for(self._limit - 1)
        with self._changed:
            self._start()

    def flush(self) -> None:
        """Wait until all uploads have ended.

        Raises
        ------
        BaseException
            The failure of one of them.
        """
        self._wait_for(0)

    def upload(self, work: Callable[[], None]) -> None:
        """Run an upload when the work before it has ended.

        Parameters
        ----------
        work : callable
            If it raises, the uploader has failed with that exception.

        Raises
        ------
        BaseException
            The failure of an earlier upload.
        """
        self._add(work, is_upload=True)

    def do(self, work: Callable[[], None]) -> None:
        """Run other work in its turn; only :meth:`close` and later uploads wait for it.

        Parameters
        ----------
        work : callable
            Must not raise.
        """
        self._add(work, is_upload=False)

    def close(self) -> None:
        """Wait until all work is done, and end the thread.

        Raises
        ------
        BaseException
            The failure of an upload.
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
            # The traceback of the failure refers to this frame: without this, a cycle would keep
            # the objects of user code alive.
            del failure

    def _wait_for(self, unfinished: int) -> None:
        # Nearly always there is no upload to wait for: then a result does not take the lock.
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
            # After the withdrawal: a waiting caller must find the held messages withdrawn.
            self._unfinished = 0
            self._changed.notify_all()
