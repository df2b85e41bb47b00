"""The table that compares the resources of a trial with the capacity of the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from math import inf
from typing import Final

from dasktune.placement.worker import WorkerCapacity
from dasktune.text.text_table import table_lines
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory

#: Maximum number of workers in a table, largest first.
_MAX_ROWS: Final = 20

#: The rules of placement strategies that the table does not show.
_RULES: Final = {
    "STRICT_PACK": "All bundles must fit on one worker (STRICT_PACK).",
    "STRICT_SPREAD": "Each bundle must have a worker of its own (STRICT_SPREAD).",
}


def capacity_table(
    request: PlacementGroupFactory,
    workers: Mapping[str, WorkerCapacity],
    free: Callable[[str, str], float],
    status_of: Callable[[WorkerCapacity], str],
) -> str:
    """Return a table of the resources of each requested bundle and of each worker.

    Parameters
    ----------
    request : PlacementGroupFactory
        The resources of one trial.
    workers : mapping
        The capacity of each worker, by address.
    free : callable
        ``free(address, kind)`` returns how much of a resource is free.
    status_of : callable
        Returns a worker's status.
    """
    kinds = list(request.required_resources) or ["CPU"]
    rows = [["worker", "status", *(f"{kind} free/total" for kind in kinds)]]
    for name, bundle in _bundle_rows(request.bundles):
        rows.append([name, "", *(_amount(bundle.get(kind, 0)) for kind in kinds)])
    largest_first = sorted(workers.items(), key=lambda item: [-item[1].total(kind) for kind in kinds])
    for address, worker in largest_first[:_MAX_ROWS]:
        cells = [f"{_amount(free(address, kind))}/{_amount(worker.total(kind))}" for kind in kinds]
        rows.append([address, status_of(worker), *cells])
    lines = table_lines(rows)
    more = len(largest_first) - _MAX_ROWS
    if more > 0:
        lines.append(f"and {more} more")
    if isinstance(request, HostPlacement) and request.per_host is not None:
        lines.append(f"Each host must have room for {request.per_host} bundles (per_host).")
    elif len(request.bundles) > 1 and request.strategy in _RULES:
        rule = _RULES[request.strategy]
        lines.append(rule.replace("worker", "host") if isinstance(request, HostPlacement) else rule)
    return "\n".join(lines)


def _bundle_rows(bundles: list[dict[str, float]]) -> Iterable[tuple[str, dict[str, float]]]:
    """Yield each row's name and bundle; equal bundles in a sequence share a row."""
    if len(bundles) == 1:
        yield "asked", bundles[0]
        return
    begin = 0
    for bundle, group in groupby(bundles):
        end = begin + len(list(group))
        name = f"bundle {begin}" if end - begin == 1 else f"bundles {begin}-{end - 1}"
        yield f"asked, {name}", bundle
        begin = end


def _amount(value: float) -> str:
    return "unlimited" if value == inf else f"{value:.10g}"
