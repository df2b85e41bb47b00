"""Regret of searchers with early stopping: ``python -m benchmarks.search_quality.full_trainings``.

Each searcher runs with promoting ASHA (81 epochs, eta 3), 4 trials at a time, in virtual time,
until all trials together have trained for the epochs of 20 full trainings (FT).

On recorded curves a searcher chooses among the configurations of the set: its suggestion is
replaced by the nearest one that was not tried, and the searcher is told so. On synthetic curves it
suggests any configuration, and a configuration is found when it has trained fully.

*Regret* is ``(found - best) / (middle - best)``. `found` is the lowest loss so far, `best` the
lowest of all, and `middle` the median of all configurations' lowest losses; 1 until one is found.
On synthetic curves the losses are those without noise.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks._measure import machine
from benchmarks._report import table
from benchmarks.reproduce.curves import EPOCHS, load, set_names
from benchmarks.search_quality.figures import p_value
from dasktune.schedulers import PromotingASHAScheduler
from dasktune.search import FINISHED, GaussianProcessSearch, Searcher, TuneBOHB
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube
from dasktune.space import Variants
from dasktune.stopper import Stopper
from dasktune.testing import simulate
from dasktune.testing.problems import PROBLEMS, CurveProblem

__all__ = ["CONTENDERS", "PROBLEM_NAMES", "regrets"]

_ETA, _SLOTS = 3, 4

#: Full trainings after which regrets are compared.
MOMENTS = (5, 10, 20)

#: The synthetic problems and the recorded sets.
PROBLEM_NAMES = (*PROBLEMS, *set_names())


class _Random(Searcher):
    """Draws from the space, each suggestion from a stream of its own."""

    answers_at_once = True

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        self._variants, self._seed, self._count = Variants(config), spec["seed"], 0
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._count += 1
        stream = SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, self._count))
        return self._variants.draw(0, default_rng(stream)).config


def _gp(first: int) -> GaussianProcessSearch:
    return GaussianProcessSearch(grace_period=first, reduction_factor=_ETA)


@dataclass(frozen=True)
class _Contender:
    """A searcher and the first rung of the scheduler."""

    make: Callable[[], Searcher]
    grace_period: int = 1


#: The searchers by name; the first one is the one that others are compared with.
CONTENDERS: Mapping[str, _Contender] = {
    "random": _Contender(_Random),
    "BOHB": _Contender(TuneBOHB),
    "GP": _Contender(lambda: _gp(1)),
    "random, grace 9": _Contender(_Random, 9),
    "BOHB, grace 9": _Contender(TuneBOHB, 9),
    "GP, grace 9": _Contender(lambda: _gp(9), 9),
}


class _OnPool(Searcher):
    """Replaces each suggestion of a searcher by the nearest configuration that was not tried."""

    def __init__(self, searcher: Searcher, space: Mapping[str, Any], configs: Sequence[Any]) -> None:
        super().__init__()
        self._inner, self._space, self._configs = searcher, space, configs
        flat = FlatSpace(Variants(space).domains, "the pool")
        self._flat, self._cube = flat, UnitCube(flat.parameters)
        self._points = np.array([self._vector(config) for config in configs])
        self._is_choice = self._cube.options > 0
        self._is_tried = np.zeros(len(configs), bool)

    def _vector(self, config: Mapping[str, Any]) -> list[float | None]:
        values = self._flat.values(config)
        assert values is not None, f"{config} is not in the space"
        return self._cube.vector(values)

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        self._inner.set_search_properties(metric, mode, self._space, **spec)
        return False

    def suggest(self, trial_id: str) -> Any:
        if self._is_tried.all():
            return FINISHED
        suggested = self._inner.suggest(trial_id)
        assert isinstance(suggested, dict), "it always has a suggestion"
        steps = np.abs(self._points - np.array(self._vector(suggested), dtype=float))
        distances = (np.where(self._is_choice, steps > 0, steps) ** 2).sum(axis=1)
        row = int(np.argmin(np.where(self._is_tried, inf, distances)))
        self._is_tried[row] = True
        self._inner.adopt(trial_id, self._configs[row])
        return {"row": row}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._inner.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self._inner.on_trial_complete(trial_id, result, error)

    def on_pause(self, trial_id: str) -> None:
        self._inner.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._inner.on_unpause(trial_id)


class _Record(Stopper):
    """Records the lowest loss by epoch, and ends the search after the last moment."""

    def __init__(self, only_complete: bool) -> None:
        self._only_complete = only_complete
        self._best = inf
        #: The lowest loss after each epoch of the search.
        self.best: list[float] = []

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        if not self._only_complete or result["training_iteration"] >= EPOCHS:
            self._best = min(self._best, result["true"])
        self.best.append(self._best)
        return False

    def stop_all(self) -> bool:
        return len(self.best) >= MOMENTS[-1] * EPOCHS


@dataclass(frozen=True)
class _Trials:
    """What a search trains."""

    searcher: Searcher
    space: Mapping[str, Any]
    train: Callable[[dict[str, Any], int | None], Any]
    #: The lowest loss, and the median of all configurations.
    best: float
    middle: float


def _synthetic(problem: CurveProblem, searcher: Searcher, seed: int) -> _Trials:
    ends = problem.expected_curves(problem.sample(3000, 0))[:, -1]
    steps = problem.trainable(seed)

    def train(config: dict[str, Any], checkpoint: int | None) -> Any:
        true = float(problem.expected_curves([config])[0, -1])
        for metrics, *rest in steps(config, checkpoint):  # type: ignore[call-arg]
            yield {**metrics, "true": true}, *rest

    return _Trials(searcher, problem.param_space, train, problem.optimum.loss, float(np.median(ends)))


def _recorded(name: str, searcher: Searcher, seed: int) -> _Trials:
    curves = load(name)
    losses: NDArray[np.float64] = curves.loss[:, seed % len(curves.seeds)]
    pace = default_rng([seed, 1]).uniform(0.5, 2, len(losses)).tolist()

    def train(config: dict[str, Any], checkpoint: int | None) -> Any:
        row = config["row"]
        for epoch in range(checkpoint or 0, EPOCHS):
            loss = float(losses[row, epoch])
            yield {"loss": loss, "true": loss}, pace[row], epoch + 1

    lowest = losses.min(axis=1)
    pool = _OnPool(searcher, curves.param_space, curves.configs)
    return _Trials(pool, {}, train, float(lowest.min()), float(np.median(lowest)))


def regrets(problem: str, contender: str, seed: int) -> list[float]:
    """Return the regret of a search after 5, 10 and 20 full trainings."""
    how = CONTENDERS[contender]
    is_synthetic = problem in PROBLEMS
    trials = (
        _synthetic(PROBLEMS[problem](), how.make(), seed)
        if is_synthetic
        else _recorded(problem, how.make(), seed)
    )
    record = _Record(only_complete=is_synthetic)
    simulate(
        trials.train,
        param_space=trials.space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=-1,
            search_alg=trials.searcher,
            scheduler=PromotingASHAScheduler(
                max_t=EPOCHS, reduction_factor=_ETA, grace_period=how.grace_period
            ),
            seed=seed,
        ),
        run_config=tune.RunConfig(stop=record),
        slots=_SLOTS,
    )
    found = [record.best[min(moment * EPOCHS, len(record.best)) - 1] for moment in MOMENTS]
    scale = trials.middle - trials.best
    return [(one - trials.best) / scale if one < inf else 1.0 for one in found]


def _rows(runs: Mapping[tuple[str, str, int], list[float]], problems: Sequence[str]) -> list[list[Any]]:
    """Return the rows of a table, each with a contender over the seeds of some problems."""
    base = next(iter(CONTENDERS))
    rows = []
    for label in CONTENDERS:
        pairs = [
            (own, runs[problem, base, seed])
            for (problem, name, seed), own in runs.items()
            if name == label and problem in problems and (problem, base, seed) in runs
        ]
        if not pairs:
            continue
        cells: list[Any] = [", ".join(problems), label, len(pairs)]
        for index in range(len(MOMENTS)):
            own, other = ([pair[side][index] for pair in pairs] for side in (0, 1))
            wins = sum(one < two - 1e-12 for one, two in zip(own, other, strict=True))
            losses = sum(one > two + 1e-12 for one, two in zip(own, other, strict=True))
            against = "" if label == base else f"; {wins}:{losses}"
            cells.append(f"{fmean(own):.3f} ({median(own):.3f}){against}")
        cells.append("" if label == base else f"{p_value(own, other):.2g}")
        rows.append(cells)
    return rows


def _show(runs: Mapping[tuple[str, str, int], list[float]]) -> None:
    header = ["problems", "searcher", "searches", *(f"after {moment} FT" for moment in MOMENTS), "p at 20"]
    print(f"\nmean regret (median); wins:losses against {next(iter(CONTENDERS))}, by pairs of seeds\n")
    known = [name for name in PROBLEM_NAMES if any(key[0] == name for key in runs)]
    groups = [[name] for name in known]
    for prefix in ("hartmann", "lightgbm"):
        group = [name for name in known if name.startswith(prefix)]
        groups += [group] if len(group) > 1 else []
    print(table(header, [row for group in groups for row in _rows(runs, group)]), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches that a file does not have yet, and print the tables of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="searches of each (20)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--problems", nargs="+", choices=PROBLEM_NAMES, default=PROBLEM_NAMES)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--runs", type=Path, help="a file with a line for each search (none)")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no search after this time")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    runs: dict[tuple[str, str, int], list[float]] = {}
    if options.runs and options.runs.exists():
        for line in options.runs.read_text().splitlines():
            problem, contender, seed, found = json.loads(line)
            runs[problem, contender, seed] = found
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for key in ((name, label, seed) for name in options.problems for label in options.contenders):
            if key in runs or time.monotonic() - begun > 60 * options.minutes:
                continue
            runs[key] = regrets(*key)
            if options.runs:
                with options.runs.open("a") as file:
                    file.write(json.dumps([*key, runs[key]]) + "\n")
    about = machine()
    print(f"{about['date']}, {about['cores']} cores, {time.monotonic() - begun:.0f} s")
    _show(runs)


if __name__ == "__main__":
    # Small matrices are not worth a thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
