"""What is asked beside what is there, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from math import inf
from typing import Final

from dasktune.placement.worker import WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["lay_out"]

#: Workers that a table shows; the first ones are the largest.
_MAX_ROWS: Final = 20

#: What a strategy demands of workers beside their size.
_RULES: Final = {
    "STRICT_PACK": "All bundles must fit on one worker (STRICT_PACK).",
    "STRICT_SPREAD": "Each bundle must have a worker of its own (STRICT_SPREAD).",
}


def lay_out(
    request: PlacementGroupFactory,
    workers: Mapping[str, WorkerCapacity],
    free: Callable[[str, str], float],
    standing: Callable[[WorkerCapacity], str],
) -> str:
    """Return a table of what each bundle asks, and what each worker has free and in all.

    Parameters
    ----------
    request : PlacementGroupFactory
        What the trial asks for.
    workers : mapping
        By address.
    free : callable
        ``free(address, kind)`` is what is left.
    standing : callable
        Returns a worker's status in a word.
    """
    kinds = list(request.required_resources) or ["CPU"]
    rows = [["worker", "status", *(f"{kind} free/total" for kind in kinds)]]
    for name, bundle in _asked(request.bundles):
        rows.append([name, "", *(_amount(bundle.get(kind, 0)) for kind in kinds)])
    largest_first = sorted(
        workers.items(), key=lambda item: [-item[1].total(kind) for kind in kinds]
    )
    for address, worker in largest_first[:_MAX_ROWS]:
        cells = [f"{_amount(free(address, kind))}/{_amount(worker.total(kind))}" for kind in kinds]
        rows.append([address, standing(worker), *cells])
    lines = _aligned(rows)
    more = len(largest_first) - _MAX_ROWS
    if more > 0:
        lines.append(f"and {more} more")
    if len(request.bundles) > 1 and request.strategy in _RULES:
        lines.append(_RULES[request.strategy])
    return "\n".join(lines)


def _asked(bundles: list[dict[str, float]]) -> Iterable[tuple[str, dict[str, float]]]:
    """Yield what a row is called and the bundle that it shows; equal neighbours share one."""
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


def _aligned(table: list[list[str]]) -> list[str]:
    """Pad the columns of a table to equal width."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
