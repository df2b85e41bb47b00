"""A thread that draws lines and pictures, so that the driver's loop does not.

To draw a picture and a line above it takes rich some milliseconds. With a line for each result the
loop would do little else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Number of lines that may wait to be drawn. Further ones are dropped.
_MAX_LINES: Final = 10_000


class DrawingThread(Generic[T]):
    """Draws what it is given, in order: all lines that wait at once, then the newest picture.

    Parameters
    ----------
    draw : callable
        ``draw(lines, picture)`` draws lines above a picture; the picture is None if it has not
        changed. Called in the thread.

    Examples
    --------
    >>> drawn = []
    >>> drawing = DrawingThread(lambda lines, picture: drawn.append((lines, picture)))
    >>> drawing.show("picture")
    >>> drawing.finish(10.0), drawn
    (True, [([], 'picture')])
    """

    # The users' threads leave lines and a picture, and the thread takes them, under one lock that
    # is free while the thread draws. `finish` may time out: the thread then ends after the drawing
    # that it is at.

    def __init__(self, draw: Callable[[Sequence[str], T | None], None]) -> None:
        self._draw = draw
        self._lines: deque[str] = deque()
        self._picture: T | None = None
        self._num_dropped = 0
        self._is_drawing = self._is_finished = False
        self._error: Exception | None = None
        # An RLock: a signal handler of the user may print while its thread does.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def add_line(self, text: str) -> None:
        """Let the thread draw a line.

        Raises
        ------
        Exception
            The exception with which an earlier drawing failed.
        """
        with self._changed:
            if len(self._lines) < _MAX_LINES:
                self._lines.append(text)
            else:
                self._num_dropped += 1
            self._wake()

    def show(self, picture: T) -> None:
        """Let the thread draw a picture in place of the last one, which it may not have drawn.

        Raises
        ------
        Exception
            The exception with which an earlier drawing failed.
        """
        with self._changed:
            self._picture = picture
            self._wake()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether everything is drawn."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._has_work or self._is_drawing), timeout)

    def finish(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, and end the thread; return whether everything is drawn."""
        is_drawn = self.wait(timeout)
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        return is_drawn

    @property
    def _has_work(self) -> bool:
        return bool(self._lines) or self._picture is not None

    def _wake(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dasktune-drawing", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            error = None
            try:
                self._draw(*work)
            except Exception as failure:  # rich, or a stream of the user, may raise anything
                error = failure
            with self._changed:
                self._error, self._is_drawing = error, False
                self._changed.notify_all()

    def _next(self) -> tuple[list[str], T | None] | None:
        """Return what to draw next, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work or self._is_finished)
            if self._is_finished:
                return None
            lines, picture, dropped = list(self._lines), self._picture, self._num_dropped
            if dropped:
                lines.append(f"[dasktune] {dropped} lines were not shown: there were too many at once")
            self._lines.clear()
            self._picture, self._num_dropped, self._is_drawing = None, 0, True
            return lines, picture
