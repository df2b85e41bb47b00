"""``dasktune notice``: tell workers that they end soon, so that their trials save and leave."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import add_address
from dasktune.cli.output import write
from dasktune.errors import check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = (
        "Batch scripts call it before the end of their job, as in a trap of SIGUSR1:\n\n"
        "  dasktune notice --address scheduler.json --host $(hostname) --in 120"
    )
    add_address(parser, default="none; it is required")
    meant = parser.add_mutually_exclusive_group(required=True)
    meant.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="the workers on this host, by its name or address; may be repeated (default: none)",
    )
    meant.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="WORKER",
        help="the worker with this address or name; may be repeated (default: none)",
    )
    meant.add_argument("--all", action="store_true", help="all workers of the cluster")
    parser.add_argument(
        "--in",
        dest="seconds",
        type=float,
        required=True,
        metavar="SECONDS",
        help="seconds until the workers end (default: none; it is required)",
    )
    parser.add_argument(
        "--reason",
        default="notice",
        metavar="TEXT",
        help="why they end, for logs and the journal (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="the most seconds to wait for each worker (default: %(default)g)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Give the notice."""
    # Importing Dask is slow.
    from dasktune.cluster.notices.send_notice import send_notice

    check(arguments.address is not None, "--address", "given", arguments.address)
    check(arguments.timeout > 0, "--timeout", "a positive number of seconds", arguments.timeout)
    noticed = send_notice(
        arguments.address,
        arguments.seconds,
        hosts=arguments.host,
        workers=arguments.worker,
        reason=arguments.reason,
        timeout_s=arguments.timeout,
    )
    for address in noticed:
        write(f"{address} ends in {arguments.seconds:g} s: its trials save and leave")
    return 0
