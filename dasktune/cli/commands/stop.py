"""``dasktune stop``: end an experiment that runs on a cluster by itself."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import add_address
from dasktune.cli.output import one_line, write
from dasktune.errors import check

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.add_argument("name", metavar="NAME", help="as it was submitted")
    add_address(parser, "needed")
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="leave trials unfinished, so that it can be resumed, as Ctrl-C would",
    )


def run(arguments: argparse.Namespace) -> int:
    """Tell its driver to end."""
    from dasktune.detached import attach

    address = arguments.address
    check(address is not None, "--address", "that of the cluster it was submitted to", address)
    with attach(arguments.name, client=address) as experiment:
        status = experiment.status
        if status != "running":
            write(f"{one_line(arguments.name)} has {status} already")
            return 0
        if arguments.interrupt:
            experiment.interrupt()
        else:
            experiment.stop()
    word = "interrupted" if arguments.interrupt else "stopped"
    write(f"{one_line(arguments.name)} is being {word}")
    return 0
