"""``dasktune resume``: go on with an experiment that its driver has left."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from dasktune.cli.arguments import add_address, add_experiment, storage_of, storage_options
from dasktune.cli.fitting import fit
from dasktune.cli.loading import load_object
from dasktune.cli.output import one_line
from dasktune.resume_config import ResumeConfig, ResumeType
from dasktune.tuner import Tuner

__all__ = ["add_arguments", "run"]

_EPILOG: Final = """\
Resuming unpickles objects that the experiment stored, and so runs code that stands there: do it
only with directories that you trust. The subcommands that show experiments unpickle nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.epilog = _EPILOG
    add_experiment(parser)
    parser.add_argument(
        "trainable", metavar="TRAINABLE", help="script.py:name or package.module:name, as before"
    )
    defaults = ResumeConfig()
    for name, what in (
        ("unfinished", "that had not ended"),
        ("errored", "that failed"),
        ("finished", "that ended well"),
    ):
        parser.add_argument(
            f"--{name}",
            choices=[kind.value for kind in ResumeType],
            default=ResumeType(getattr(defaults, name)).value,
            help=f"what becomes of trials {what}; %(default)s by default",
        )
    add_address(parser, "by default a cluster on this machine, for as long as it runs")
    parser.add_argument("--quiet", action="store_true", help="show no result")


def run(arguments: argparse.Namespace) -> int:
    """Go on with it."""
    storage = storage_of(arguments)
    trainable = load_object(arguments.trainable, "TRAINABLE")
    sys.stderr.write(
        f"dasktune: unpickling what {one_line(storage)} stored; do this only with directories that "
        "you trust\n"
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
