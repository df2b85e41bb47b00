"""Base class of the displays, and a text stream that may break."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TextIO

from dasktune.progress.background_stream import BackgroundStream, write_text
from dasktune.progress.progress import Progress
from dasktune.progress.trial_counts import TrialCounts


class Stream:
    """Writes text to a stream, and stops writing once the stream has failed.

    Parameters
    ----------
    stream : text stream or None
        The stream; if None, nothing is written.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def is_open(self) -> bool:
        """Whether the stream still accepts text."""
        return self._stream is not None

    @property
    def is_behind(self) -> bool:
        """Whether the stream has not written its last texts yet, because it is not read."""
        stream: object = self._stream
        return isinstance(stream, BackgroundStream) and stream.is_behind

    def write(self, text: str) -> None:
        """Write a text; characters that the encoding lacks are replaced. Never raises."""
        if self._stream is not None and not write_text(self._stream, text):
            self._stream = None


class Display:
    """Shows the progress of an experiment. Times are seconds of the experiment's clock.

    Parameters
    ----------
    stream : text stream or None
        The stream of printed lines.
    """

    #: Seconds between two updates.
    interval_s: float = 1.0
    #: Whether a line is printed for each failure when it happens.
    shows_failures: bool = False
    #: Whether the last picture has a table of the best trials.
    shows_trials: bool = False
    #: Whether it replaces ``sys.stderr``, so that warnings appear beside it.
    redirects: bool = False

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = Stream(stream)
        #: Where warnings are written.
        self.messages = stream
        self._next = -inf

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None without a terminal."""
        return None

    def is_due(self, now: float, improved: bool) -> bool:
        """Whether it is time for another update.

        Parameters
        ----------
        now : float
            The present time.
        improved : bool
            Whether there is a better value than the one shown last.
        """
        return now >= self._next

    def update(self, progress: Progress, trial_counts: TrialCounts, now: float) -> None:
        """Show the progress, unless the last picture is still being written.

        So pictures never queue up: after a pause of the terminal the newest one is drawn.

        Parameters
        ----------
        progress : Progress
            The counts of the experiment.
        trial_counts : TrialCounts
            The trials.
        now : float
            The present time.
        """
        self._next = now + self.interval_s
        if not self.stream.is_behind:
            self.show(progress, trial_counts)

    def show(self, progress: Progress, trial_counts: TrialCounts) -> None:
        """Draw the progress."""
        raise NotImplementedError

    def print_line(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.stream.write(f"{text}\n")

    def end(self, progress: Progress, trial_counts: TrialCounts, lines: Sequence[str]) -> None:
        """Show the final progress, and close the display.

        Parameters
        ----------
        progress : Progress
            The counts of the experiment.
        trial_counts : TrialCounts
            The trials.
        lines : sequence of str
            Lines to print below the progress.
        """
        self.show(progress, trial_counts)
        self.close()
        for line in lines:
            self.stream.write(f"{line}\n")

    def close(self) -> None:
        """Restore the terminal, in any state of the display. A second call does nothing."""
