"""What every display can do, and a stream that may be a terminal, a file, or broken."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import TextIO

from dasktune.progress.board import Board
from dasktune.progress.progress import Progress

__all__ = ["Display", "Stream"]

logger = logging.getLogger(__name__)


class Stream:
    """Writes text, and gives a stream up that cannot be written to.

    Parameters
    ----------
    stream : text stream or None
        Where to; nowhere if None.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def is_open(self) -> bool:
        """Whether it has not been given up."""
        return self._stream is not None

    def write(self, text: str) -> None:
        """Write a text, with what its encoding lacks replaced. Never raises."""
        stream = self._stream
        if stream is None:
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                plain = text.replace("·", "-").replace("…", "~")
                stream.write(plain.encode("ascii", "replace").decode("ascii"))
            stream.flush()
        except Exception:
            # Closed, a broken pipe, or whatever somebody has put in place of sys.stderr.
            logger.debug("the stream of the progress is given up", exc_info=True)
            self._stream = None


class Display:
    """Shows how far an experiment is. Times are seconds of the experiment's clock.

    Parameters
    ----------
    stream : text stream or None
        Where lines go.
    """

    #: Seconds between two pictures.
    interval_s: float = 1.0
    #: Whether each failure is to be told of as it happens.
    tells_failures: bool = False

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = Stream(stream)
        self._next = -inf

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None if it is none."""
        return None

    def is_due(self, now: float, improved: bool) -> bool:
        """Whether it is time for another picture.

        Parameters
        ----------
        now : float
            The time.
        improved : bool
            Whether there is a best value that has not been shown.
        """
        return now >= self._next

    def update(self, progress: Progress, board: Board, now: float) -> None:
        """Show how far it is.

        Parameters
        ----------
        progress : Progress
            What there is to say of the whole.
        board : Board
            The trials.
        now : float
            The time.
        """
        self._next = now + self.interval_s
        self.show(progress, board)

    def show(self, progress: Progress, board: Board) -> None:
        """Draw the picture."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.stream.write(f"{text}\n")

    def end(self, progress: Progress, board: Board, lines: Sequence[str]) -> None:
        """Show for good how it ended.

        Parameters
        ----------
        progress : Progress
            What there is to say of the whole.
        board : Board
            The trials.
        lines : sequence of str
            What else there is to say.
        """
        self.show(progress, board)
        self.close()
        for line in lines:
            self.stream.write(f"{line}\n")

    def close(self) -> None:
        """Leave the terminal as it was, in whatever state. It may be called twice."""
