"""Searches of several contenders on several problems with the same seeds, compared in pairs."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks._measure import machine
from benchmarks._report import table
from benchmarks.search_quality.figures import p_value

__all__ = ["PairedSearches"]

#: ``{(problem, contender, seed): regrets}``, a regret for each of the moments.
_Runs = dict[tuple[str, str, int], list[float]]

#: Regrets that differ by less are equal: their losses differ by floating point errors.
_EQUAL = 1e-12


@dataclass(frozen=True, kw_only=True)
class PairedSearches:
    """The searches of a benchmark, and the tables of their regrets.

    Parameters
    ----------
    regrets : callable
        Runs a search of a problem by a contender with a seed, and returns the regret after each
        moment.
    contenders : sequence of str
        The searchers. The others are compared with the first one.
    moments : sequence of int
        The numbers of full trainings after which regrets are compared.
    problem : str
        What a problem is called, as the argument ``--<problem>s`` and as the title of its column.
    problems, default : sequence of str
        The names of all problems, in the order of the tables, and those that run by default.
    groups : callable
        Returns the groups of problems, of those with runs, that get a row together.
    first_seed : int, default=0
        The first seed by default.
    """

    regrets: Callable[[str, str, int], list[float]]
    contenders: Sequence[str]
    moments: Sequence[int]
    problem: str
    problems: Sequence[str]
    default: Sequence[str]
    groups: Callable[[list[str]], list[list[str]]]
    first_seed: int = 0

    def main(self, arguments: Sequence[str] | None, description: str | None) -> None:
        """Run the searches that a file does not have yet, and print the tables of all."""
        # Small matrices are not worth a thread.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        options = self._options(arguments, description)
        begun = time.monotonic()
        runs = _read(options.runs)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for key in ((name, label, seed) for name in options.problems for label in options.contenders):
                if key in runs or time.monotonic() - begun > 60 * options.minutes:
                    continue
                runs[key] = self.regrets(*key)
                if options.runs:
                    with options.runs.open("a") as file:
                        file.write(json.dumps([*key, runs[key]]) + "\n")
        about = machine()
        print(f"{about['date']}, {about['cores']} cores, {time.monotonic() - begun:.0f} s")
        self._show(runs)

    def _options(self, arguments: Sequence[str] | None, description: str | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=description)
        add, contenders = parser.add_argument, self.contenders
        add("--seeds", type=int, default=20, help="searches of each (20)")
        first = self.first_seed
        add("--first-seed", type=int, default=first, help=f"the first seed ({first})")
        add(f"--{self.problem}s", dest="problems", nargs="+", choices=self.problems, default=self.default)
        add("--contenders", nargs="+", choices=contenders, default=contenders)
        add("--runs", type=Path, help="a file with a line for each search (none)")
        add("--minutes", type=float, default=inf, help="begin no search after this time")
        return parser.parse_args(arguments)

    def _show(self, runs: _Runs) -> None:
        moments = [f"after {moment}" for moment in self.moments]
        header = [f"{self.problem}s", "searcher", "searches", *moments, f"p at {self.moments[-1]}"]
        print(f"\nmean regret (median); wins:losses against {self.contenders[0]}, by pairs of seeds\n")
        known = [name for name in self.problems if any(key[0] == name for key in runs)]
        groups = [[name] for name in known] + [group for group in self.groups(known) if len(group) > 1]
        print(table(header, [row for group in groups for row in self._rows(runs, group)]), flush=True)

    def _rows(self, runs: _Runs, problems: Sequence[str]) -> list[list[Any]]:
        """Return the rows of a table, each with a contender over the seeds of some problems."""
        base, rows = self.contenders[0], []
        for label in self.contenders:
            pairs = [
                (own, runs[problem, base, seed])
                for (problem, name, seed), own in runs.items()
                if name == label and problem in problems and (problem, base, seed) in runs
            ]
            if not pairs:
                continue
            cells: list[Any] = [", ".join(problems), label, len(pairs)]
            for index in range(len(self.moments)):
                own, other = ([pair[side][index] for pair in pairs] for side in (0, 1))
                wins = sum(one < two - _EQUAL for one, two in zip(own, other, strict=True))
                losses = sum(one > two + _EQUAL for one, two in zip(own, other, strict=True))
                against = "" if label == base else f"; {wins}:{losses}"
                cells.append(f"{fmean(own):.3f} ({median(own):.3f}){against}")
            cells.append("" if label == base else f"{p_value(own, other):.2g}")
            rows.append(cells)
        return rows


def _read(path: Path | None) -> _Runs:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    parsed = map(json.loads, lines)
    return {(problem, contender, seed): found for problem, contender, seed, found in parsed}
