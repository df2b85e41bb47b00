"""Running a `Tuner` to its end for somebody at a terminal."""

from __future__ import annotations

import sys
from typing import Final

from dasktune.cli.output import one_line, write
from dasktune.dashboard.text import printable
from dasktune.errors import TrialError
from dasktune.results import ResultGrid
from dasktune.tuner import Tuner

__all__ = ["fit"]

_INTERRUPTED: Final = 130


def fit(tuner: Tuner, *, quiet: bool) -> int:
    """Run an experiment, show what came of it, and return the exit code.

    Parameters
    ----------
    tuner : Tuner
        What to run.
    quiet : bool
        Whether to show nothing.

    Returns
    -------
    int
        0 if no trial failed, 1 if some did, 130 if it was interrupted.
    """
    try:
        results = tuner.fit()
    except TrialError as error:
        sys.stderr.write(f"dasktune: {one_line(error.message)}\n")
        return 1
    runner = tuner.runner
    interrupted = runner is not None and runner.interrupted
    if not quiet:
        write(printable(results))
        write(_hint(results, interrupted))
    return _INTERRUPTED if interrupted else int(results.num_errors > 0)


def _hint(results: ResultGrid, interrupted: bool) -> str:
    command = "show" if interrupted else "errors" if results.num_errors else "best"
    return f"More: dasktune {command} {one_line(results.experiment_path)}"
