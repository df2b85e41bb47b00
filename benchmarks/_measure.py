"""What every benchmark needs: figures from times, medians of runs, and the machine's description.

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
    """When the results and ends of one experiment's trials were recorded, in epoch seconds."""

    begun: float
    ended: float = 0.0
    #: Processor time of the driver, without the cluster that may live in the same process.
    cpu: float = 0.0
    results: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    #: Seconds that reports waited for their decisions, as the trials measured them.
    waits: list[float] = field(default_factory=list)
    #: The records of the journal.
    journal: list[dict[str, Any]] = field(default_factory=list)

    def figures(self) -> Figures:
        """Return rates over all of ``fit()``, with its start and its end."""
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
    """Return the events per second between the first and the last; 0 if they are simultaneous."""
    span = max(moments) - min(moments)
    return (len(moments) - 1) / span if span > 0 else 0.0


@dataclass(frozen=True)
class Row:
    """A row of the table: a figure of dasktune, and optionally one of another side."""

    label: str
    unit: str
    workload: str
    figure: str
    #: ``(side, workload, figure)`` to compare with. The ratio is ours over theirs, or the inverse
    #: for times.
    other: tuple[str, str, str] | None = None
    higher_is_better: bool = True


#: ``(side, workload, figure)`` -> one value for each run.
Series = dict[tuple[str, str, str], list[float]]


def format_table(rows: Iterable[Row], series: Series) -> str:
    """Return the medians of all runs as a Markdown table; a ratio above 1 means ours is better."""
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
        compared = [f"{row.other[0]} {_spread(theirs)}" if row.other and theirs else ""]
        compared.append(f"{_ratio(ours, theirs, row.higher_is_better):.3g}x" if theirs else "")
        lines.append(f"| {row.label} | {row.unit} | {_spread(ours)} | {' | '.join(compared)} |")
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
    """Return the versions of Python and of the installed packages that affect the figures."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return the date, the machine, the revision and the versions that the figures belong to."""
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
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def now() -> float:
    """Return epoch seconds, comparable between processes."""
    return time.time()


def milliseconds(durations: Sequence[float]) -> str:
    """Return the median in milliseconds of durations in seconds, and their number."""
    return f"{1e3 * median(durations):,.1f} ({len(durations)})" if durations else "none"
