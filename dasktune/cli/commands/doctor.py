"""``dasktune doctor``: whether a cluster can run experiments, and what to do if not."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import (
    add_address,
    add_format,
    add_storage_options,
    storage_options,
)
from dasktune.cli.output import one_line, write, write_json
from dasktune.errors import check
from dasktune.storage.location import Storage

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    parser.epilog = "Exit code: 1 if something must be mended, 0 otherwise."
    add_address(parser, "by default a cluster that is started here, as 'run' does")
    parser.add_argument(
        "--storage-path", metavar="PATH", help="try this directory or URL from each host"
    )
    add_storage_options(parser)
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="for each answer"
    )
    add_format(parser, "text", "json")


def run(arguments: argparse.Namespace) -> int:
    """Look at the cluster."""
    # Dask takes a while to import.
    from dasktune.cluster.doctor import examine

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
        write(f"{len(found) - failed - warned} ok, {warned} to be improved, {failed} to be mended")
    return int(failed > 0)
