"""Leave one data set out: ``python -m benchmarks.search_quality.warm_starts``.

Each search tunes LightGBM on one data set, and has 100 random full trainings on each of the other
data sets as its past. Trials are real trainings of 81 rounds, 4 at a time in virtual time, without
a scheduler. ``reversed`` has the past with its losses negated: what was best there is the worst.

*Regret* is ``(found - best) / (middle - best)``. `found` is the lowest final loss so far, `best`
and `middle` are the lowest one and the median of the recorded configurations
(`benchmarks.reproduce`); a search may find a better one, so that its regret is below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import default_rng

import dasktune as tune
from benchmarks.reproduce.curves import CurveSet, load, set_path
from benchmarks.reproduce.data_sets import Halves, load_halves
from benchmarks.reproduce.recipes import SETS
from benchmarks.reproduce.training import train_lightgbm
from benchmarks.search_quality.paired_searches import PairedSearches
from dasktune.search import Searcher, WarmStart
from dasktune.stopper import Stopper
from dasktune.testing import simulate

__all__ = ["CONTENDERS", "regrets"]

_SLOTS = 4

#: Full trainings after which regrets are compared.
_MOMENTS = (2, 5, 10, 20)

#: Trainings of each earlier experiment.
_PAST = 100

_RECORDED = [name for name, one in SETS.items() if one.family == "lightgbm" and set_path(name).exists()]

#: The open data sets of the tables. The past of a sealed one is all of them. `lightgbm_digits` was
#: recorded later.
_OPEN = tuple(name for name in _RECORDED if not SETS[name].sealed and name != "lightgbm_digits")
_SEALED = tuple(name for name in _RECORDED if SETS[name].sealed)

#: ``{name: searcher from the past}``, where the past has a list of pairs for each data set; the
#: first one is the one that others are compared with.
CONTENDERS: Mapping[str, Callable[[list[Any]], Searcher | None]] = {
    "random": lambda past: None,
    "warm start": WarmStart,
    "without guard": lambda past: WarmStart(past, guard=False),
    "reversed": lambda past: WarmStart(_reversed(past)),
    "reversed, without guard": lambda past: WarmStart(_reversed(past), guard=False),
}


def _reversed(past: list[Any]) -> list[Any]:
    return [[(config, -loss) for config, loss in one] for one in past]


@lru_cache
def _curves(name: str) -> CurveSet:
    return load(name, sealed=name in _SEALED)


@lru_cache
def _halves(name: str) -> Halves:
    return load_halves(SETS[name].data)


def _past(name: str, seed: int) -> list[Any]:
    """Return an experiment of random trials for each other open data set."""
    rng = default_rng([seed, 41])
    experiments = []
    for other in _OPEN:
        curves = _curves(other)
        rows = rng.choice(len(curves.configs), min(_PAST, len(curves.configs)), replace=False)
        losses = curves.loss[:, (seed + 1) % len(curves.seeds), -1]
        if other != name:
            experiments.append([(dict(curves.configs[row]), float(losses[row])) for row in rows])
    return experiments


class _Record(Stopper):
    """Records the losses in the order in which trials end; stops nothing."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        self.losses.append(result["loss"])
        return False


def regrets(name: str, contender: str, seed: int) -> list[float]:
    """Return the regret of a search after 2, 5, 10 and 20 full trainings."""
    curves, halves = _curves(name), _halves(name)
    axis = seed % len(curves.seeds)
    pace, record = default_rng([seed, 1]), _Record()

    def train(config: dict[str, Any]) -> Any:
        losses, _ = train_lightgbm(config, halves, [curves.seeds[axis]])
        yield {"loss": float(losses[0, -1])}, pace.uniform(0.5, 2)

    simulate(
        train,
        param_space=dict(curves.param_space),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=_MOMENTS[-1],
            search_alg=CONTENDERS[contender](_past(name, seed)),
            seed=seed,
        ),
        run_config=tune.RunConfig(stop=record),
        slots=_SLOTS,
    )
    known = curves.loss[:, axis, -1]
    best, middle = float(known.min()), float(np.median(known))
    return [(min(record.losses[:moment]) - best) / (middle - best) for moment in _MOMENTS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches that a file does not have yet, and print the tables of all."""
    searches = PairedSearches(
        regrets=regrets,
        contenders=list(CONTENDERS),
        moments=_MOMENTS,
        problem="set",
        problems=(*_OPEN, *_SEALED),
        default=_OPEN,
        groups=lambda known: [known],
    )
    searches.main(arguments, __doc__)


if __name__ == "__main__":
    main()
