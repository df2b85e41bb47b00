"""``dasktune doctor``: check whether a cluster can run experiments, and advise what to fix."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import (
    add_address,
    add_format,
    add_storage_options,
    storage_options,
)
from dasktune.cli.output import write, write_json
from dasktune.errors import check
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = "Exit code: 1 if something must be fixed, 0 otherwise."
    add_address(parser, default="one that dasktune starts on this machine")
    parser.add_argument(
        "--storage-path",
        metavar="PATH",
        help="also write and read a file below this directory or URL on each host (default: no such check)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="the most seconds that each check may take (default: %(default)g)",
    )
    add_format(parser, "text", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check the cluster."""
    # Importing Dask is slow.
    from dasktune.cluster.checks.cluster_diagnosis import examine

    check(arguments.timeout > 0, "--timeout", "a positive number of seconds", arguments.timeout)
    path = arguments.storage_path
    storage = None if path is None else Storage(path, storage_options(arguments))
    found = []
    for one in examine(arguments.address, storage=storage, timeout_s=arguments.timeout):
        found.append(one)
        if arguments.format == "text":
            write(f"{one.level:<4}  {one.subject:<11}  {one_line(one.finding)}")
            if one.advice:
                write(f"{'':<19}-> {one_line(one.advice)}")
    if arguments.format == "json":
        names = ("level", "subject", "finding", "advice")
        write_json([{name: getattr(one, name) for name in names} for one in found])
    failed = sum(one.level == "fail" for one in found)
    if arguments.format == "text":
        warned = sum(one.level == "warn" for one in found)
        write(f"{len(found) - failed - warned} ok, {warned} to improve, {failed} to fix")
    return int(failed > 0)
