"""Run a `Tuner` for a subcommand, and print its results."""

from __future__ import annotations

import sys
from typing import Final

from dasktune.cli.output import write
from dasktune.errors import TrialError
from dasktune.text.formatting import one_line, printable_lines
from dasktune.tuner.result_grid import ResultGrid
from dasktune.tuner.tuner import Tuner

_INTERRUPTED: Final = 130


def fit(tuner: Tuner, *, quiet: bool) -> int:
    """Run an experiment, print its results, and return the exit code.

    Parameters
    ----------
    tuner : Tuner
        The tuner to run.
    quiet : bool
        Whether to print nothing.

    Returns
    -------
    int
        0 if no trial failed, 1 if some failed, 130 if the experiment was interrupted.

    Raises
    ------
    SystemExit
        After SIGTERM, with the exit status 143.
    """
    try:
        results = tuner.fit()
    except TrialError as error:
        sys.stderr.write(f"dasktune: {one_line(error.message)}\n")
        return 1
    runner = tuner.runner
    interrupted = runner is not None and runner.interrupted
    if not quiet:
        write(printable_lines(results))
        write(_hint(results, interrupted))
    return _INTERRUPTED if interrupted else int(results.num_errors > 0)


def _hint(results: ResultGrid, interrupted: bool) -> str:
    command = "show" if interrupted else "errors" if results.num_errors else "best"
    return f"More: dasktune {command} {one_line(results.experiment_path)}"
