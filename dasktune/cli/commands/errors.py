"""``dasktune errors``: why trials failed, with tracebacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.experiment_overview import find_trial, read_experiment
from dasktune.cli.output import write
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import one_line, printable_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_experiment(parser)
    parser.add_argument(
        "trial",
        nargs="?",
        metavar="TRIAL",
        help="the ID of a trial: show all its failures (default: the last failure of each trial)",
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the tracebacks."""
    storage = storage_of(arguments)
    projection = read_experiment(storage).projection
    if arguments.trial is None:
        failed = [trial for trial in projection.trials if trial.status == "ERROR" or trial.failures]
        write("\n\n".join(map(_last_failure, failed)) or "no trial failed")
        return 0
    trial = find_trial(projection, arguments.trial)
    write(_all_failures(storage, trial) or f"trial {one_line(trial.trial_id)} has not failed")
    return 0


def _last_failure(trial: TrialProjection) -> str:
    return "\n".join(_lines(trial))


def _lines(trial: TrialProjection) -> Iterator[str]:
    times = "" if trial.failures < 2 else f", failed {trial.failures} times, the last time"
    message = one_line(trial.error or trial.reason)
    yield f"{one_line(trial.trial_id)} ({trial.status}{times}): {message}"
    if trial.traceback:
        yield printable_lines(trial.traceback).rstrip()
    if trial.error and trial.status == "ERROR" and trial.reason not in ("", trial.error):
        yield f"Failed finally: {one_line(trial.reason)}"


def _all_failures(storage: Storage, trial: TrialProjection) -> str:
    """Return all failures from the trial's ``error.txt``, or else the last one from the journal."""
    name = f"trials/{trial.folder}/error.txt"
    with reading(name, storage):
        if storage.exists(name):
            return printable_lines(storage.read_bytes(name).decode("utf-8", "replace")).rstrip()
    return _last_failure(trial) if trial.error or trial.status == "ERROR" else ""
