"""``dasktune errors``: why trials failed, with tracebacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.experiment_overview import find_trial, read_experiment
from dasktune.cli.output import write
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import one_line, plural, printable_lines


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
        write(_failures(projection.trials))
        return 0
    trial = find_trial(projection, arguments.trial)
    write(_all_failures(storage, trial) or f"trial {one_line(trial.trial_id)} has not failed")
    return 0


def _failures(trials: Iterable[TrialProjection]) -> str:
    """Return the last failure of each trial, and how many trials failed only before a restore."""
    texts, earlier = [], []
    for trial in trials:
        if trial.status == "ERROR" or trial.error:
            texts.append(_last_failure(trial))
        elif any(attempt.outcome == "failed" for attempt in trial.attempts):
            # A restore that runs a failed trial again forgets the error; `error.txt` keeps it.
            earlier.append(one_line(trial.trial_id))
    texts = texts or ["no trial failed"]
    if earlier:
        count, name = f"{len(earlier)} {plural('trial', len(earlier))}", earlier[0]
        texts.append(f"{count} failed before a restore: `dasktune errors EXPERIMENT {name}` shows why")
    return "\n\n".join(texts)


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
