"""A text stream that a thread writes, so that its users never wait for a terminal or a pipe.

A terminal may stop reading at any moment: Ctrl-S, a pager, the copy mode of tmux, a lost SSH
session. A write then blocks for as long as that takes. The driver's loop must not: after
``driver_ttl`` seconds the workers would end its trials.
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections import deque
from typing import Final, TextIO

logger = logging.getLogger(__name__)

#: Characters that may wait to be written.
_MAX_PENDING: Final = 1 << 20

#: Seconds that `is_behind` waits once, so that a terminal that reads does not miss a picture.
_USUAL_S: Final = 0.05

#: Seconds that `print_promptly` waits for the stream.
PROMPT_SECONDS: Final = 0.5


class BackgroundStream(io.TextIOBase):
    """Writes text to another stream from a thread, in order.

    A write returns at once. If the other stream blocks, texts wait up to a limit, and further ones
    are dropped; a line then says how many. If the other stream fails, everything is dropped.

    Parameters
    ----------
    stream : text stream or None
        The stream to write to; None drops everything.
    max_pending : int, default=1048576
        Characters that may wait. What exceeds them is dropped, whole texts at a time.

    Examples
    --------
    >>> written = io.StringIO()
    >>> stream = BackgroundStream(written)
    >>> stream.write("text")
    4
    >>> stream.finish(10.0), written.getvalue()
    (True, 'text')
    """

    # The users of the stream append texts, and the thread removes them, under one lock that is free
    # while the thread writes. `finish` may time out: then the thread is left in its write, as a
    # daemon that owns a copy of the file. It holds no lock of the interpreter or of `sys.stderr`,
    # so the process can end. If its write returns after all, it writes what waits and ends.

    def __init__(self, stream: TextIO | None, *, max_pending: int = _MAX_PENDING) -> None:
        self.original = stream
        self._max_pending = max_pending
        self._texts: deque[str] = deque()
        #: Characters that wait, or are being written.
        self._pending = 0
        self._num_dropped = 0
        self._is_finished = stream is None
        #: Whether the stream has not been read for a while; then `is_behind` does not wait again.
        self._is_stuck = False
        # An RLock: a signal handler of the user may write while its thread writes.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Let the thread write a text; returns at once."""
        with self._changed:
            if self._is_finished:
                return len(text)
            if self._pending + len(text) > self._max_pending:
                self._num_dropped += 1
                return len(text)
            self._texts.append(text)
            self._pending += len(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dasktune-display", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes each text."""

    @property
    def is_behind(self) -> bool:
        """Whether text still waits; a new picture should not be drawn then.

        Waits a moment for a stream that has kept up so far.
        """
        if not self._is_stuck:
            self._is_stuck = not self._wait(_USUAL_S)
        elif not self._pending:
            self._is_stuck = False
        return self._is_stuck

    def finish(self, timeout: float) -> bool:
        """Wait until everything is written, or the time is over; later texts are dropped.

        Parameters
        ----------
        timeout : float
            Seconds to wait.

        Returns
        -------
        bool
            Whether everything was written.
        """
        written = self._wait(timeout)
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        return written

    def _wait(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the other stream."""
        return getattr(self.original, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        """Whether text may be written: always."""
        return True

    def isatty(self) -> bool:
        """Whether the other stream is a terminal."""
        return self.original is not None and self.original.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the other stream, for the size of its terminal."""
        if self.original is None:
            raise io.UnsupportedOperation("fileno")
        return self.original.fileno()

    def _run(self) -> None:
        target = _own_copy(self.original)
        is_open = True
        while (text := self._next()) is not None:
            if is_open:
                is_open = write_text(target, text)
            with self._changed:
                self._pending -= len(text)
                if not is_open:
                    self._texts.clear()
                    self._pending, self._is_finished = 0, True
                self._changed.notify_all()
        if target is not self.original:
            _close(target)

    def _next(self) -> str | None:
        """Return the next text to write, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._is_finished)
            if not self._texts:
                return None
            text = self._texts.popleft()
            if self._num_dropped and not self._texts:
                note = f"\n[dasktune] {self._num_dropped} texts were not shown: the output was not read\n"
                self._num_dropped = 0
                self._pending += len(note)
                text += note
            return text


def print_promptly(stream: TextIO | None, text: str) -> None:
    """Print a text, but do not wait long for a terminal that has stopped reading. Never raises.

    Parameters
    ----------
    stream : text stream or None
        The value of ``sys.stderr``.
    text : str
        The text, with its line feed.
    """
    background = BackgroundStream(stream)
    background.write(text)
    background.finish(PROMPT_SECONDS)


def write_text(stream: TextIO, text: str) -> bool:
    """Write a text and flush; characters that the encoding lacks are replaced. Never raises.

    Parameters
    ----------
    stream : text stream
        The stream.
    text : str
        The text.

    Returns
    -------
    bool
        Whether the stream has accepted it; False if it is closed or broken.
    """
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            plain = text.replace("·", "-").replace("…", "~")
            stream.write(plain.encode("ascii", "replace").decode("ascii"))
        stream.flush()
    except Exception:
        # It may be closed, a broken pipe, or a user's object in place of sys.stderr.
        logger.debug("progress is no longer written: its stream failed", exc_info=True)
        return False
    return True


def _own_copy(stream: TextIO | None) -> TextIO:
    """Return a stream to the same file, which no other thread waits for; or the stream itself.

    A thread that is left in a write keeps the lock of its stream. The interpreter flushes
    ``sys.stderr`` when it ends, and aborts if it cannot get that lock. A stream that is not
    line-buffered may hold text that belongs before ours, and one of another class, as in a
    notebook, may lead anywhere.
    """
    assert stream is not None, "the thread starts with the first text for a stream"
    if type(stream) is not io.TextIOWrapper or not stream.line_buffering:
        return stream
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # closed, or in memory
        return stream
    return open(descriptor, "w", encoding=stream.encoding, errors=stream.errors, buffering=1)


def _close(stream: TextIO) -> None:
    try:
        stream.close()
    except OSError:
        logger.debug("the stream of the progress could not be closed", exc_info=True)
