"""``dasktune report``: write an experiment as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.experiment_overview import read_experiment
from dasktune.cli.output import write
from dasktune.errors import ConfigError, check
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import one_line

if TYPE_CHECKING:
    from dasktune.forecast.what_if import WhatIf


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
    parser.add_argument(
        "--whatif",
        action="store_true",
        help=(
            "add what other trial schedulers would have cost; takes seconds. With fewer than 20 full "
            "trials the report is written without that"
        ),
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the report."""
    # Importing Bokeh is slow.
    from dasktune.dashboard.report import to_html

    storage = storage_of(arguments)
    overview = read_experiment(storage)
    name = f"{overview.name}.html"
    path = Path(arguments.output or name).expanduser()
    if path.is_dir():
        path /= name
    hint = "Create it first."
    check(path.parent.is_dir(), "--output", "in an existing directory", str(path), hint)
    forecast, missing = None, None
    if arguments.whatif:
        try:
            forecast = _forecast(storage)
        except ConfigError as error:
            missing = error
    page = to_html(overview.projection, forecast)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(page)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; --force overwrites it") from None
    write(one_line(path))
    if missing is not None:
        raise ConfigError(f"the report is without the costs of other schedulers: {missing}") from missing
    return 0


def _forecast(storage: Storage) -> WhatIf:
    from dasktune.tuner.scheduler_forecast import whatif

    return whatif(storage.url, storage_options=storage.storage_options)
