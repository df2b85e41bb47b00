"""``dasktune queue``: list, run, cancel and remove experiments in a queue."""

from __future__ import annotations

import argparse
import logging
import time
from math import inf, nan
from typing import Any, Final

from dasktune.cli.arguments import add_address, add_format, add_storage_options, storage_options
from dasktune.cli.output import terminal_width, write, write_csv, write_json
from dasktune.control.issuer import this_user
from dasktune.errors import check, without_passwords
from dasktune.storage.fs.storage import Storage
from dasktune.storage.queue.experiment_queue import RETRY_SECONDS, ExperimentQueue
from dasktune.storage.queue.queue_state import OVER, QueueState, QueueStatus, start_order
from dasktune.text.formatting import format_duration, one_line
from dasktune.text.text_table import table_text

_EPILOG: Final = """\
Actions: 'ls' lists the experiments in the order in which they were submitted,
'run' starts their drivers until Ctrl-C, 'cancel' takes ENTRY out of the queue,
or stops it if it is running, and 'prune' removes those that are over; their
results stay. 'run' unpickles what is in the queue.

Example: run two experiments at a time on a cluster

  dasktune queue run s3://bucket/queue --address tcp://host:8786 --limit 2

Example: remove what has finished more than a week ago

  dasktune queue prune /shared/queue --older-than 7d --state finished
"""

#: Seconds of the units of a duration.
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: The columns of CSV, which are the names in JSON.
_COLUMNS: Final = (
    *("id", "name", "state", "place", "priority", "weight"),
    *("submitted", "waiting_s", "path", "reason"),
)

_HEAD: Final = ("id", "name", "state", "place", "priority", "weight", "waiting", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=("ls", "run", "cancel", "prune"), help="what to do")
    parser.add_argument("queue", metavar="QUEUE", help="the directory or URL of the queue")
    parser.add_argument(
        "entry", metavar="ENTRY", nargs="?", help="for 'cancel': the ID or the name of an experiment"
    )
    add_address(parser, default="each experiment starts one on this machine")
    parser.add_argument(
        "--limit",
        type=int,
        default=1,
        metavar="N",
        help="for 'run': how many experiments run at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--until-empty", action="store_true", help="for 'run': end when all experiments are over"
    )
    parser.add_argument(
        "--older-than",
        type=_duration,
        metavar="TIME",
        help="for 'prune': the least time since the end, such as 90s, 12h or 7d (default: none, give it)",
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=[state.value for state in OVER],
        help="for 'prune': remove experiments in this state; may be repeated (default: all three)",
    )
    add_format(parser, "table", "csv", "json")
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """List, run, cancel or remove experiments."""
    storage = Storage(arguments.queue, storage_options(arguments)).with_retry(RETRY_SECONDS)
    check(arguments.limit >= 1, "--limit", "at least 1", arguments.limit)
    if arguments.action == "cancel":
        check(arguments.entry is not None, "ENTRY", "given with cancel", arguments.entry)
        return _cancel(ExperimentQueue(storage), arguments.entry)
    check(arguments.entry is None, "ENTRY", f"left out with {arguments.action}", arguments.entry)
    if arguments.action == "run":
        return _run(storage, arguments)
    if arguments.action == "prune":
        check(arguments.older_than is not None, "--older-than", "given with prune", arguments.older_than)
        return _prune(ExperimentQueue(storage), arguments.older_than, arguments.state)
    return _list(ExperimentQueue(storage), arguments.format)


def _duration(text: str) -> float:
    """Return the seconds of a duration such as ``7d``."""
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = nan
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"must be a number with s, m, h or d, such as 7d, got {text!r}")
    return seconds


def _prune(queue: ExperimentQueue, older_than_s: float, states: list[str] | None) -> int:
    removed = queue.prune(older_than_s=older_than_s, states=[*map(QueueState, states)] if states else OVER)
    for one in removed:
        write(f"{one_line(one.name)} ({one.entry_id}) is removed; it had {one.state.value}")
    if not removed:
        write("nothing to remove")
    return 0


def _cancel(queue: ExperimentQueue, entry: str) -> int:
    found = queue.find(entry)
    if found.state.is_over:
        write(f"{one_line(found.name)} has {found.state.value} already")
        return 0
    queue.cancel(found.entry_id, this_user())
    write(f"{one_line(found.name)} is being cancelled")
    return 0


def _run(storage: Storage, arguments: argparse.Namespace) -> int:
    # Importing the tuner is slow.
    from dasktune.tuner.queue_runner import QueueRunner

    def show(entry: QueueStatus, text: str) -> None:
        reason = f": {one_line(entry.reason)}" if entry.state is QueueState.FAILED else ""
        write(f"{one_line(entry.name)} ({entry.entry_id}) {one_line(text)}{reason}")

    runner = QueueRunner(storage, arguments.address, limit=arguments.limit, on_change=show)
    logger = logging.getLogger("dasktune")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        runner.run(until_empty=arguments.until_empty)
    finally:
        logger.setLevel(level)
    states = [one.state for one in ExperimentQueue(storage).statuses()]
    return int(QueueState.FAILED in states)


def _list(queue: ExperimentQueue, form: str) -> int:
    now = time.time()
    found = queue.statuses()
    places = {one.entry_id: place for place, one in enumerate(start_order(found, now), start=1)}
    rows = [_facts(one, places.get(one.entry_id), now) for one in found]
    if form == "json":
        write_json(rows)
    elif form == "csv":
        write_csv(_COLUMNS, [[*row.values()] for row in rows])
    elif rows:
        write(table_text(_HEAD, [_row(row) for row in rows], terminal_width()))
    else:
        write(f"no experiments in {one_line(queue.storage)}")
    return 0


def _facts(one: QueueStatus, place: int | None, now: float) -> dict[str, Any]:
    waiting = max(0.0, now - one.submitted) if one.state is QueueState.QUEUED else None
    return {
        "id": one.entry_id,
        "name": one.name,
        "state": one.state.value,
        "place": place,
        "priority": one.priority,
        "weight": one.weight,
        "submitted": one.submitted,
        "waiting_s": None if waiting is None else round(waiting, 3),
        "path": without_passwords(one.directory) or None,
        "reason": one.reason or None,
    }


def _row(row: dict[str, Any]) -> list[Any]:
    waiting = row["waiting_s"]
    return [
        row["id"],
        row["name"],
        row["state"],
        None if row["place"] is None else str(row["place"]),
        f"{row['priority']:g}",
        f"{row['weight']:g}",
        None if waiting is None else format_duration(waiting),
        row["reason"],
    ]
