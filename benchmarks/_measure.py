"""What every benchmark needs: times into figures, runs into medians, and what machine it was.

Standard library only: the interpreter that runs Ray imports it too.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

__all__ = [
    "Figures",
    "Row",
    "Size",
    "Timeline",
    "format_table",
    "load",
    "machine",
    "milliseconds",
    "versions",
]

#: Name of a figure -> its value in one run.
Figures = dict[str, float]

_PACKAGES = ("dasktune", "dask", "distributed", "ray", "numpy", "cloudpickle")


@dataclass(frozen=True)
class Size:
    """How much a workload does."""

    trials: int
    #: Reports of each trial.
    steps: int = 1
    #: Trials that run at a time.
    slots: int = 2


@dataclass
class Timeline:
    """When one experiment told what, in epoch seconds on the driver."""

    begun: float
    ended: float = 0.0
    #: Processor time of the driver, without the cluster that may live in the same process.
    cpu: float = 0.0
    results: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    #: How long reports waited for their decisions, in seconds, as the trials say.
    waits: list[float] = field(default_factory=list)
    #: All that was recorded.
    journal: list[dict[str, Any]] = field(default_factory=list)

    def figures(self) -> Figures:
        """Return rates over the whole of ``fit()``, its start and its end included."""
        wall = self.ended - self.begun
        return {
            "wall_s": wall,
            "trials_per_s": len(self.ends) / wall,
            "results_per_s": len(self.results) / wall,
            "steady_trials_per_s": _rate(self.ends),
            "steady_results_per_s": _rate(self.results),
            "first_result_s": min(self.results) - self.begun,
            "driver_cpu_us_per_result": 1e6 * self.cpu / len(self.results),
            "driver_cpu_us_per_trial": 1e6 * self.cpu / len(self.ends),
        }


def _rate(moments: Sequence[float]) -> float:
    """Return how many a second came between the first and the last, 0 where that says nothing."""
    span = max(moments) - min(moments)
    return (len(moments) - 1) / span if span > 0 else 0.0


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure of ours, perhaps beside one of another side."""

    label: str
    unit: str
    workload: str
    figure: str
    #: ``(side, workload, figure)`` to compare with; ours over theirs, or the inverse for times.
    other: tuple[str, str, str] | None = None
    higher_is_better: bool = True


#: ``(side, workload, figure)`` -> one value for each run.
Series = dict[tuple[str, str, str], list[float]]


def format_table(rows: Iterable[Row], series: Series) -> str:
    """Return medians of all runs as a Markdown table, with the ratio so that above 1 is better."""
    lines = [
        "| what | unit | dasktune: median (min to max) | other | ours is better by |",
        "|---|---|---|---|---|",
    ]
    shown: set[tuple[str, str]] = set()
    for row in rows:
        ours = series.get(("dasktune", row.workload, row.figure))
        theirs = series.get(row.other, []) if row.other else []
        # A figure of ours is repeated only beside another one of theirs.
        if not ours or (not theirs and (row.workload, row.figure) in shown):
            continue
        shown.add((row.workload, row.figure))
        told = [f"{row.other[0]} {_spread(theirs)}" if row.other and theirs else ""]
        told.append(f"{_ratio(ours, theirs, row.higher_is_better):.3g}x" if theirs else "")
        lines.append(f"| {row.label} | {row.unit} | {_spread(ours)} | {' | '.join(told)} |")
    return "\n".join(lines)


def _ratio(ours: Sequence[float], theirs: Sequence[float], higher_is_better: bool) -> float:
    above, below = median(ours), median(theirs)
    if not higher_is_better:
        above, below = below, above
    return above / below if below else math.inf


def _spread(values: Sequence[float]) -> str:
    middle = _short(median(values))
    return middle if len(values) < 2 else f"{middle} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def versions() -> dict[str, str]:
    """Return the versions of what is installed here and matters."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return what a figure is worth nothing without."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
        "revision": _revision(),
        "versions": versions(),
    }


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def _revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def now() -> float:
    """Return epoch seconds, comparable between processes."""
    return time.time()


def milliseconds(durations: Sequence[float]) -> str:
    """Return the median of durations in seconds, in milliseconds, and how many there were."""
    return f"{1e3 * median(durations):,.1f} ({len(durations)})" if durations else "none"
