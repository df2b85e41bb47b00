"""``dasktune resume``: resume an interrupted experiment."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from dasktune.cli.arguments import (
    add_address,
    add_experiment,
    add_storage_options,
    storage_of,
    storage_options,
)
from dasktune.cli.fitting import fit
from dasktune.cli.loading import load_object
from dasktune.config.resume_config import ResumeConfig, ResumeType
from dasktune.text.formatting import one_line
from dasktune.tuner.tuner import Tuner

_EPILOG: Final = """\
For each trial, "resume" continues it from its last checkpoint, "restart" starts
it from the beginning, and "skip" leaves it as it is.

Resuming unpickles objects of the experiment's directory, which can run any
code: only resume directories that you trust. The commands that show experiments
unpickle nothing.

Example: resume an interrupted experiment, and restart the trials that failed

  dasktune resume ~/dasktune_results/exp train.py:train --errored restart

Exit code: 0 if no trial failed, 1 if some failed, 2 after an error, 130 after
Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument(
        "trainable",
        metavar="TRAINABLE",
        help="the experiment's function or Trainable: script.py:name or package.module:name",
    )
    defaults = ResumeConfig()
    for name, what in (
        ("unfinished", "that had not ended"),
        ("errored", "that failed"),
        ("finished", "that ended without error"),
    ):
        parser.add_argument(
            f"--{name}",
            choices=[kind.value for kind in ResumeType],
            default=ResumeType(getattr(defaults, name)).value,
            help=f"what to do with trials {what} (default: %(default)s)",
        )
    add_address(parser, default="one that dasktune starts on this machine and closes at the end")
    parser.add_argument("--quiet", action="store_true", help="print no results")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Resume the experiment."""
    storage = storage_of(arguments)
    trainable = load_object(arguments.trainable, "TRAINABLE")
    sys.stderr.write(
        f"dasktune: unpickling objects of {one_line(storage)}; only resume directories that you trust\n"
    )
    tuner = Tuner.restore(
        storage.url,
        trainable,
        resume_config=ResumeConfig(
            unfinished=arguments.unfinished, errored=arguments.errored, finished=arguments.finished
        ),
        storage_options=storage_options(arguments) or None,
        client=arguments.address,
    )
    return fit(tuner, quiet=arguments.quiet)
