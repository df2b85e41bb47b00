"""``dasktune stop``: stop a running experiment, in another process or submitted to a cluster."""

from __future__ import annotations

import argparse
from typing import Final

from dasktune.cli.send_command import DriverCommand, add_driver_arguments, send_command

_REMEDY: Final = (
    "Press Ctrl-C where it runs, or run `kill -INT {pid}` on that machine; `dasktune resume` resumes "
    "the unfinished trials. Stop a submitted experiment by its name and --address, and one with "
    "RunConfig(server_port=True) by its directory."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_driver_arguments(parser)
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="leave trials unfinished, as Ctrl-C does, so that 'dasktune resume' can continue them",
    )


def run(arguments: argparse.Namespace) -> int:
    """Send the driver the command to end."""
    is_interrupt = arguments.interrupt
    command = DriverCommand(
        to_submitted=lambda one: one.interrupt() if is_interrupt else one.stop(),
        to_server=lambda one: one.cancel_experiment() if is_interrupt else one.stop_experiment(),
        done=f"is being {'interrupted' if is_interrupt else 'stopped'}",
        remedy=_REMEDY,
    )
    return send_command(command, arguments)
