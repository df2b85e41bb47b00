"""Regret of searchers with early stopping: ``python -m benchmarks.search_quality.full_trainings``.

Each searcher runs with promoting ASHA (81 epochs, eta 3), 4 trials at a time, in virtual time,
until all trials together have trained for the epochs of 20 full trainings (FT).

On recorded curves a searcher chooses among the configurations of the set: its suggestion is
replaced by the nearest one that was not tried, which the searcher adopts. On synthetic curves it
suggests any configuration, and a configuration is found when it has trained fully.

*Regret* is ``(found - best) / (middle - best)``. `found` is the lowest loss so far, `best` the
lowest of all, and `middle` the median of all configurations' lowest losses; 1 until one is found.
On synthetic curves the losses are those without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from numpy.typing import NDArray

import dasktune as tune
from benchmarks.reproduce.curves import EPOCHS, load, set_names
from benchmarks.search_quality.paired_searches import PairedSearches
from benchmarks.search_quality.pool import Pool
from dasktune.schedulers import PromotingASHAScheduler, TrialScheduler
from dasktune.search import FINISHED, GaussianProcessSearch, Searcher, TuneBOHB
from dasktune.space import Variants
from dasktune.stopper import Stopper
from dasktune.testing import simulate
from dasktune.testing.problems import PROBLEMS, CurveProblem

__all__ = [
    "CONTENDERS",
    "MOMENTS",
    "PROBLEM_NAMES",
    "Random",
    "gaussian_process",
    "regrets",
    "regrets_of",
    "search",
]

_ETA, _SLOTS = 3, 4

#: Full trainings after which regrets are compared.
MOMENTS = (5, 10, 20)

#: The synthetic problems and the recorded sets.
PROBLEM_NAMES = (*PROBLEMS, *set_names())


class Random(Searcher):
    """Draws from the space, each suggestion from a stream of its own."""

    answers_at_once = True

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        self._variants, self._seed, self._count = Variants(config), spec["seed"], 0
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._count += 1
        stream = SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, self._count))
        return self._variants.draw(0, default_rng(stream)).config


def gaussian_process(first: int) -> GaussianProcessSearch:
    return GaussianProcessSearch(grace_period=first, reduction_factor=_ETA)


@dataclass(frozen=True)
class _Contender:
    """A searcher and the first rung of the scheduler."""

    make: Callable[[], Searcher]
    grace_period: int = 1


#: The searchers by name; the first one is the one that others are compared with.
CONTENDERS: Mapping[str, _Contender] = {
    "random": _Contender(Random),
    "BOHB": _Contender(TuneBOHB),
    "GP": _Contender(lambda: gaussian_process(1)),
    "random, grace 9": _Contender(Random, 9),
    "BOHB, grace 9": _Contender(TuneBOHB, 9),
    "GP, grace 9": _Contender(lambda: gaussian_process(9), 9),
}


class _OnPool(Searcher):
    """Replaces each suggestion of a searcher by the nearest configuration that was not tried."""

    def __init__(self, searcher: Searcher, space: Mapping[str, Any], configs: Sequence[Any]) -> None:
        super().__init__()
        self._inner, self._space, self._pool = searcher, space, Pool(space, configs)

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        self._inner.set_search_properties(metric, mode, self._space, **spec)
        return False

    def suggest(self, trial_id: str) -> Any:
        if self._pool.is_empty:
            return FINISHED
        suggested = self._inner.suggest(trial_id)
        assert isinstance(suggested, dict), "it always has a suggestion"
        row = self._pool.take(suggested)
        self._inner.adopt(trial_id, self._pool.configs[row])
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


def _recorded(name: str, searcher: Searcher, seed: int, sealed: bool) -> _Trials:
    curves = load(name, sealed=sealed)
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
    scheduler = PromotingASHAScheduler(max_t=EPOCHS, reduction_factor=_ETA, grace_period=how.grace_period)
    return search(problem, how.make(), scheduler, seed, _SLOTS)


def search(
    problem: str,
    searcher: Searcher,
    scheduler: TrialScheduler,
    seed: int,
    slots: int,
    *,
    sealed: bool = False,
) -> list[float]:
    """Return the regret of a search after 5, 10 and 20 full trainings.

    Parameters
    ----------
    problem : str
        One of `PROBLEM_NAMES`.
    searcher, scheduler : Searcher, TrialScheduler
        New ones.
    seed : int
        The seed of the search, of the pace of each trial, and of the training.
    slots : int
        The number of trials that run at a time.
    sealed : bool, default=False
        Whether to search the sealed curves of a recorded set: see `benchmarks.reproduce.recipes`.
    """
    is_synthetic = problem in PROBLEMS
    trials = (
        _synthetic(PROBLEMS[problem](), searcher, seed)
        if is_synthetic
        else _recorded(problem, searcher, seed, sealed)
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
            scheduler=scheduler,
            seed=seed,
        ),
        run_config=tune.RunConfig(stop=record),
        slots=slots,
    )
    return regrets_of(record.best, trials.best, trials.middle)


def regrets_of(found: Sequence[float], best: float, middle: float) -> list[float]:
    """Return the regrets after 5, 10 and 20 full trainings.

    Parameters
    ----------
    found : sequence of float
        The lowest loss after each epoch of the search.
    best, middle : float
        The lowest loss of all configurations, and the median of their lowest losses.
    """
    losses = [found[min(moment * EPOCHS, len(found)) - 1] for moment in MOMENTS]
    return [(loss - best) / (middle - best) if loss < inf else 1.0 for loss in losses]


def _groups(known: list[str]) -> list[list[str]]:
    return [[name for name in known if name.startswith(prefix)] for prefix in ("hartmann", "lightgbm")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches that a file does not have yet, and print the tables of all."""
    searches = PairedSearches(
        regrets=regrets,
        contenders=list(CONTENDERS),
        moments=MOMENTS,
        problem="problem",
        problems=PROBLEM_NAMES,
        default=PROBLEM_NAMES,
        groups=_groups,
    )
    searches.main(arguments, __doc__)


if __name__ == "__main__":
    main()
