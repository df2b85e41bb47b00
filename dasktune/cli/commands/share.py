"""``dasktune share``: change the share that a running experiment has of a cluster."""

from __future__ import annotations

import argparse
from math import inf
from typing import Final

from dasktune.cli.send_command import DriverCommand, add_driver_arguments, send_command
from dasktune.config.validation import check_share

_REMEDY: Final = (
    "Name a submitted experiment together with --address. Other drivers need RunConfig(server_port=True) "
    "to accept commands; Tuner.restore() accepts a RunConfig with another share."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_driver_arguments(parser)
    parser.add_argument(
        "--weight",
        type=float,
        metavar="WEIGHT",
        help=(
            "the share relative to other experiments of the same priority, which have weight 1 unless "
            "their users say otherwise (default: unchanged)"
        ),
    )
    parser.add_argument(
        "--priority",
        type=float,
        metavar="PRIORITY",
        help=(
            "the strict class: all requests of a higher one, such as 1, are met before those of a lower "
            "one; write --priority=-1 for a negative one (default: unchanged)"
        ),
    )
    parser.add_argument(
        "--yields-after",
        type=_seconds,
        metavar="SECONDS",
        help=(
            "how long the experiment may hold more than its share while others wait, before trials that "
            'can save leave their workers; "never" for no such limit (default: unchanged)'
        ),
    )


def _seconds(text: str) -> float:
    return inf if text == "never" else float(text)


def run(arguments: argparse.Namespace) -> int:
    """Send the driver the new share."""
    weight, priority, after = arguments.weight, arguments.priority, arguments.yields_after
    check_share(weight, priority, after, ("--weight", "--priority", "--yields-after"))
    values = {"weight": weight, "priority": priority, "yields_after": after}
    shown = " and ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)
    command = DriverCommand(
        to_submitted=lambda one: one.set_share(weight, priority, after),
        to_server=lambda one: one.set_share(weight, priority, after),
        done=f"now has {shown}",
        remedy=_REMEDY,
    )
    return send_command(command, arguments)
