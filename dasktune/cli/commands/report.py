"""``dasktune report``: write an experiment as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import write
from dasktune.errors import ConfigError, check
from dasktune.text.formatting import one_line

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_experiment(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=(
            "the file to write, or a directory for NAME.html, where NAME is the experiment's "
            "(default: the working directory)"
        ),
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report."""
    # Importing Bokeh is slow.
    from dasktune.dashboard.report import to_html

    overview = read_experiment(storage_of(arguments))
    name = f"{overview.name}.html"
    path = Path(arguments.output or name).expanduser()
    if path.is_dir():
        path /= name
    hint = "Create it first."
    check(path.parent.is_dir(), "--output", "in an existing directory", str(path), hint)
    page = to_html(overview.projection)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(page)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; --force overwrites it") from None
    write(one_line(path))
    return 0
