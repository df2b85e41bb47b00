"""``dasktune report``: an experiment as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from dasktune.cli.arguments import add_experiment, storage_of
from dasktune.cli.experiments import read_experiment
from dasktune.cli.output import one_line, write
from dasktune.errors import ConfigError, check

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the subcommand takes."""
    add_experiment(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a file or a directory; by default NAME.html in the working directory",
    )
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")


def run(arguments: argparse.Namespace) -> int:
    """Write the report."""
    # Bokeh takes a while to import.
    from dasktune.dashboard.report import to_html

    overview = read_experiment(storage_of(arguments))
    name = f"{overview.name}.html"
    path = Path(arguments.output or name).expanduser()
    if path.is_dir():
        path /= name
    hint = "Make it first."
    check(path.parent.is_dir(), "--output", "in a directory that there is", str(path), hint)
    page = to_html(overview.chronicle)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(page)
    except FileExistsError:
        raise ConfigError(f"{path} is there already; --force overwrites it") from None
    write(one_line(path))
    return 0
