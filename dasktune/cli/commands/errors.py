"""``dasktune errors``: why trials failed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from dasktune.cli.arguments import add_experiment, storage_of
from dasktune.cli.experiments import read_experiment
from dasktune.cli.output import one_line, write
from dasktune.dashboard.text import printable
from dasktune.dashboard.trial_log import TrialLog
from dasktune.errors import ConfigError
from dasktune.storage.location import Storage
from dasktune.storage.masking import reading

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    add_experiment(parser)
    parser.add_argument(
        "trial", nargs="?", metavar="TRIAL", help="only this one, with all its failures"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the tracebacks."""
    storage = storage_of(arguments)
    told = read_experiment(storage).chronicle
    if arguments.trial is None:
        failed = [log for log in told.trials if log.status == "ERROR" or log.failures]
        write("\n\n".join(map(_last_failure, failed)) or "no trial failed")
        return 0
    log = told.find(arguments.trial)
    if log is None:
        some = ", ".join(one.trial_id for one in told.trials[:5])
        raise ConfigError(f"TRIAL must be one of {some}, ..., got {arguments.trial!r}")
    write(_all_failures(storage, log) or f"trial {one_line(log.trial_id)} has not failed")
    return 0


def _last_failure(log: TrialLog) -> str:
    return "\n".join(_lines(log))


def _lines(log: TrialLog) -> Iterator[str]:
    times = "" if log.failures < 2 else f", failed {log.failures} times, the last time"
    yield f"{one_line(log.trial_id)} ({log.status}{times}): {one_line(log.error or log.reason)}"
    if log.traceback:
        yield printable(log.traceback).rstrip()
    if log.error and log.status == "ERROR" and log.reason not in ("", log.error):
        yield f"Given up: {one_line(log.reason)}"


def _all_failures(storage: Storage, log: TrialLog) -> str:
    """Return what stands in the trial's file, which has them all, or else what the journal has."""
    name = f"trials/{log.folder}/error.txt"
    with reading(name, storage):
        if storage.exists(name):
            return printable(storage.read_bytes(name).decode("utf-8", "replace")).rstrip()
    return _last_failure(log) if log.error or log.status == "ERROR" else ""
