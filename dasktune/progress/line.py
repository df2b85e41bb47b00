"""Progress as one line on a stream that may be a terminal, a file, or broken."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from math import inf, isnan
from typing import Final, TextIO

from dasktune.progress.progress import Progress, render
from dasktune.trial.metrics import Mode
from dasktune.trial.status import PublicStatus

__all__ = ["ProgressLine"]

logger = logging.getLogger(__name__)

#: Seconds between two lines.
_TERMINAL_INTERVAL: Final = 0.1
_PLAIN_INTERVAL: Final = 5.0

_FALLBACK_WIDTH: Final = 80


class ProgressLine:
    """Keeps one line of progress up to date on a terminal, or prints one now and then elsewhere.

    An update costs O(1), whatever the number of trials. It never raises: a stream that cannot be
    written to is given up.

    Parameters
    ----------
    stream : text stream, optional
        Where to; ``sys.stderr`` by default.
    total : int, optional
        How many trials there will be; None if nobody knows.
    metric : str, optional
        What is optimised.
    mode : {"min", "max"}, optional
        Which way it is better.
    min_interval_s : float, optional
        Seconds between two lines at least; 0.1 on a terminal and 5 elsewhere by default.

    Examples
    --------
    >>> line = ProgressLine(sys.stdout, total=2, metric="loss", mode="min")
    >>> line.update({PublicStatus.RUNNING: 2}, now=100.0)
    0/2 trials done · 2 running · 0 errors · 00:00
    >>> done = {PublicStatus.TERMINATED: 2}
    >>> line.update(done, now=103.0, results=9, best_value=0.25, best_trial_id="a_00001")
    >>> line.finish()
    2/2 trials done · 0 running · 0 errors · best loss 0.25 (a_00001) · 00:03
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        total: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        min_interval_s: float | None = None,
    ) -> None:
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._is_terminal = _is_terminal(self._stream)
        default = _TERMINAL_INTERVAL if self._is_terminal else _PLAIN_INTERVAL
        self._interval = default if min_interval_s is None else min_interval_s
        self._total = total
        self._metric = metric
        self._sign = -1.0 if mode == "min" else 1.0
        self._best: tuple[float, str] | None = None
        self._progress: Progress | None = None
        self._started: float | None = None
        self._finished_before = 0
        self._next = -inf
        #: Characters that stand on the terminal's line, to be wiped by the next.
        self._standing = 0

    def is_due(self, now: float) -> bool:
        """Whether an update would be shown; if not, there is no need to gather it."""
        return self._stream is not None and now >= self._next

    def update(
        self,
        counts: Mapping[PublicStatus, int],
        *,
        now: float,
        results: int = 0,
        best_value: float | None = None,
        best_trial_id: str = "",
    ) -> None:
        """Take the newest figures, and show them if the last line is old enough.

        Parameters
        ----------
        counts : mapping of PublicStatus to int
            How many trials stand at each status.
        now : float
            Seconds of any clock that does not go back; the first update is where time starts.
        results : int, default=0
            How many results were reported so far.
        best_value : float, optional
            The best value so far, or the best since the last update: the line keeps the better.
        best_trial_id : str, default=""
            Whose it is.
        """
        if self._stream is None:
            return
        if best_value is not None and self._is_better(best_value):
            self._best = (best_value, best_trial_id)
        value, trial_id = self._best or (None, "")
        started = now if self._started is None else self._started
        progress = Progress(
            counts=dict(counts),
            total=self._total,
            results=results,
            metric=self._metric,
            best_value=value,
            best_trial_id=trial_id,
            elapsed_s=now - started,
            finished_before=self._finished_before,
        )
        if self._started is None:
            self._started, self._finished_before = now, progress.finished
        self._progress = progress
        if self.is_due(now):
            self._next = now + self._interval
            self._show(progress)

    def finish(self) -> None:
        """Show the newest figures for good, and give the line free. Further calls do nothing."""
        if self._progress is not None:
            self._show(self._progress)
        if self._is_terminal and self._standing:
            self._write("\n")
        self._stream = None

    def _is_better(self, value: float) -> bool:
        if isnan(value):
            return False
        return self._best is None or value * self._sign > self._best[0] * self._sign

    def _show(self, progress: Progress) -> None:
        if not self._is_terminal:
            self._write(f"{render(progress)}\n")
            return
        # The last column stays free: a terminal would go to its next line.
        line = render(progress, max(_width(self._stream) - 1, 1))
        self._write(f"\r{line.ljust(self._standing)}")
        self._standing = len(line)

    def _write(self, text: str) -> None:
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
            logger.debug("the progress line is given up", exc_info=True)
            self._stream = None


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # no file at all, or closed
        return False


def _width(stream: TextIO | None) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (AttributeError, OSError, ValueError):  # it only looks like a terminal
        columns = 0
    return columns or _FALLBACK_WIDTH
