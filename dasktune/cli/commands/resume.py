"""``dasktune resume``: resume an interrupted experiment."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from dasktune.cli.arguments import add_address, add_experiment, storage_of, storage_options
from dasktune.cli.fitting import fit
from dasktune.cli.loading import load_object
from dasktune.config.resume_config import ResumeConfig, ResumeType
from dasktune.text.formatting import one_line
from dasktune.tuner.tuner import Tuner

__all__ = ["add_arguments", "run"]

_EPILOG: Final = """\
Resuming unpickles objects of the experiment's directory, which can run any code: only resume
directories that you trust. The subcommands that show experiments unpickle nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument(
        "trainable",
        metavar="TRAINABLE",
        help="script.py:name or package.module:name of the experiment's trainable",
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
            help=f"what to do with trials {what}; %(default)s by default",
        )
    add_address(parser, "by default a cluster on this machine, which is closed at the end")
    parser.add_argument("--quiet", action="store_true", help="print no results")


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
            unfinished=arguments.unfinished,
            errored=arguments.errored,
            finished=arguments.finished,
        ),
        storage_options=storage_options(arguments) or None,
        client=arguments.address,
    )
    return fit(tuner, quiet=arguments.quiet)
