"""``dasktune logs``: what a trial, or one of its ranks, has printed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.experiment_overview import find_trial, read_experiment
from dasktune.cli.output import write
from dasktune.dashboard.model.trial_output import log_files_of, read_log
from dasktune.errors import ConfigError, check
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import log_files_of_rank

_STREAMS: Final = ("stdout", "stderr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_experiment(parser)
    parser.add_argument("trial", metavar="TRIAL", help="the ID of a trial")
    parser.add_argument(
        "--rank", type=int, default=0, metavar="N", help="a rank of a distributed trial (default: 0)"
    )
    parser.add_argument(
        "--stream", choices=("both", *_STREAMS), default="both", help="what to show (default: %(default)s)"
    )
    parser.add_argument(
        "--tail", type=int, metavar="LINES", help="show only the last lines of each stream (default: all)"
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the output."""
    storage, tail = storage_of(arguments), arguments.tail
    check(tail is None or tail > 0, "--tail", "at least 1", tail)
    trial = find_trial(read_experiment(storage).projection, arguments.trial)
    ranks = 1 if trial.ranks is None else len(trial.ranks.places)
    rule = f"from 0 to {ranks - 1}" if ranks > 1 else "0 for a trial of one process"
    check(0 <= arguments.rank < ranks, "--rank", rule, arguments.rank)
    files = log_files_of_rank(_log_files(storage), arguments.rank)
    names = dict.fromkeys(
        name for stream, name in zip(_STREAMS, files, strict=True) if arguments.stream in ("both", stream)
    )
    texts = {name: read_log(storage, f"trials/{trial.folder}/{name}", lines=tail).text for name in names}
    if len(texts) == 1:
        write(*texts.values())
    else:
        write("\n\n".join(_sections(texts)))
    return 0


def _sections(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield f"{name}\n{text or '(empty)'}"


def _log_files(storage: Storage) -> tuple[str, str]:
    """Return the names of the files of each trial."""
    files = log_files_of(storage)
    if files is None:
        raise ConfigError(
            "log_to_file must be set for an experiment whose output is to be kept, got False. "
            "Write RunConfig(log_to_file=True)."
        )
    return files
