"""``dasktune ls``: list the experiments of a directory, or those that run on a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from dasktune.cli.arguments import add_address, add_format, add_storage_options, storage_options
from dasktune.cli.experiment_overview import Overview, read_experiment
from dasktune.cli.output import terminal_width, write, write_csv, write_json
from dasktune.config import DEFAULT_STORAGE_PATH
from dasktune.errors import TuneError, check
from dasktune.placement import amounts_text
from dasktune.storage.experiment.experiments_below import experiments_below
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import format_counts, format_duration, format_value, one_line
from dasktune.text.text_table import table_text

#: Seconds for which a lost scheduler is waited for.
_TIMEOUT: Final = 10.0

_SHARES_HEAD: Final = ("name", "weight", "priority", "holds", "share", "due", "waiting", "since")

_HEAD: Final = ("name", "state", "trials", "best", "started", "duration")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help=f"the directory or URL to search (default: {DEFAULT_STORAGE_PATH})",
    )
    add_address(parser, default="none: list the experiments below PATH")
    parser.add_argument(
        "--depth",
        type=int,
        default=2,
        metavar="N",
        help="how many levels of directories below PATH to search (default: %(default)s)",
    )
    add_format(parser, "table", "csv", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the readable experiments; write an error line for each unreadable one."""
    check(arguments.depth >= 0, "--depth", "at least 0", arguments.depth)
    path = arguments.path
    if arguments.address is not None:
        check(path is None, "PATH", "left out with --address", path)
        return _list_cluster(arguments)
    place = Storage(DEFAULT_STORAGE_PATH if path is None else path, storage_options(arguments))
    found: list[Overview] = []
    broken = []
    for storage in experiments_below(place, arguments.depth):
        try:
            found.append(read_experiment(storage))
        except TuneError as error:
            broken.append(str(error))
    if arguments.format == "json":
        write_json([_facts(one, place) for one in found])
    elif arguments.format == "csv":
        rows = [[*_facts(one, place).values()] for one in found]
        write_csv(list(_facts(found[0], place)) if found else _HEAD, rows)
    elif found:
        write(table_text(_HEAD, [_row(one, place) for one in found], terminal_width()))
    elif not broken:
        write(f"no experiments in {one_line(place)}")
    for message in broken:
        sys.stderr.write(f"dasktune: {one_line(message)}\n")
    return 1 if broken else 0


def _list_cluster(arguments: argparse.Namespace) -> int:
    """List the experiments that run on a cluster, with their shares."""
    # Importing Dask is slow.
    from dasktune.cluster.sharing.share_summary import read_shares

    found = read_shares(arguments.address, timeout_s=_TIMEOUT)
    experiments = sorted(found["experiments"], key=lambda one: (-one["priority"], one["group"], one["name"]))
    if arguments.format == "json":
        write_json({"totals": found["totals"], "experiments": experiments})
    elif arguments.format == "csv":
        head = ("name", "weight", "priority", "held", "share", "due", "waiting", "waiting_s", "group")
        write_csv(head, [[one[name] for name in head] for one in experiments])
    elif experiments:
        rows = [_share_row(one, found["totals"]) for one in experiments]
        columns = list(_SHARES_HEAD)
        if any(one["group"] for one in experiments):
            columns.insert(1, "group")
            for row, one in zip(rows, experiments, strict=True):
                row.insert(1, one["group"] or None)
        write(table_text(columns, rows, terminal_width()))
    else:
        write(f"no experiments on {one_line(arguments.address)}")
    return 0


def _share_row(one: Mapping[str, Any], totals: Mapping[str, float]) -> list[Any]:
    since = None if one["waiting_s"] is None else format_duration(one["waiting_s"])
    due = None if one["due"] is None else f"{one['due']:.0%}"
    return [
        one["name"],
        f"{one['weight']:g}",
        f"{one['priority']:g}",
        amounts_text(one["held"], totals),
        f"{one['share']:.0%}",
        due,
        str(one["waiting"]),
        since,
    ]


def _name(one: Overview, place: Storage) -> str:
    """Return the path below `place`, by which the other subcommands find the experiment."""
    return one.storage.url.removeprefix(place.url).strip("/") or one.name


def _row(one: Overview, place: Storage) -> list[Any]:
    projection = one.projection
    counts = format_counts(projection.counts)
    best = (
        f"{projection.metric} {format_value(projection.best_value)}" if projection.best is not None else None
    )
    started = one.started
    when = None if started is None else f"{started:%Y-%m-%d %H:%M}"
    return [_name(one, place), one.state, counts, best, when, format_duration(projection.elapsed)]


def _facts(one: Overview, place: Storage) -> dict[str, Any]:
    projection, started = one.projection, one.started
    return {
        "name": _name(one, place),
        "path": str(one.storage),
        "state": one.state,
        "trials": len(projection.trials),
        "total_trials": projection.total,
        **projection.counts,
        "metric": projection.metric,
        "mode": projection.mode,
        "best": projection.best_value if projection.best is not None else None,
        "best_trial_id": projection.best.trial_id if projection.best is not None else None,
        "started": None if started is None else started.isoformat(timespec="seconds"),
        "duration_s": round(projection.elapsed, 3),
    }
