"""dasktune beside Optuna, Ray Tune and Syne Tune: ``python -m benchmarks.search_quality.peers``.

All search the configurations of recorded curves (open seeds), with the same seeds, pace of trials,
number of trials at a time and epochs: as many as 20 full trainings take. A suggestion is replaced
by the nearest configuration that was not tried, which the searcher gets to know. All stop trials
between 1 and 81 epochs, with a reduction factor of 3.

Optuna's study, and the schedulers and searchers of Ray Tune and Syne Tune, are called in virtual
time, without a cluster: a result is reported, and the answer is to continue or to stop. Neither
needs dask. So the command may run twice, in two environments and with one file for ``--runs``;
contenders whose package is missing are left out.

``--minutes 0`` runs nothing: it prints the tables of the sets of ``--problems`` from a file.

*Regret* is that of `benchmarks.search_quality.full_trainings`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import count, product
from math import inf
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.random import default_rng

from benchmarks._report import table
from benchmarks.reproduce.curves import EPOCHS, CurveSet, load, set_names
from benchmarks.search_quality.figures import holm, sign_test
from benchmarks.search_quality.pool import Pool
from dasktune.space import Categorical, Integer

__all__ = ["OURS", "PEERS", "Peer", "inside"]

_ETA: Final = 3
#: Full trainings after which regrets are compared.
MOMENTS: Final = (5, 10, 20)
_BUDGET: Final = MOMENTS[-1] * EPOCHS

#: Takes a suggestion, and returns the configuration that is trained instead.
Take = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Peer(Protocol):
    """A search of another package."""

    def begin(self, take: Take) -> Any:
        """Begin a trial, and return an object that stands for it."""

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        """Report a result, and return whether the trial is to be stopped."""

    def end(self, trial: Any, epoch: int, loss: float, *, stopped: bool) -> None:
        """End a trial after its last result."""


class _Optuna:
    """A study of Optuna with a sampler and a pruner."""

    def __init__(self, curves: CurveSet, seed: int, *, sampler: str, pruner: str) -> None:
        import optuna
        from optuna import distributions as kinds

        optuna.logging.set_verbosity(logging.ERROR)
        warnings.simplefilter("ignore")
        self._states = optuna.trial.TrialState
        samplers = {"TPE": "TPESampler", "random": "RandomSampler", "GP": "GPSampler"}
        options = {"min_resource": 1, "max_resource": EPOCHS, "reduction_factor": _ETA}
        pruners = {
            "Hyperband": lambda: optuna.pruners.HyperbandPruner(**options),
            "median": optuna.pruners.MedianPruner,
            "none": optuna.pruners.NopPruner,
        }
        # The bracket of a trial depends on the name of the study.
        name = f"study {seed}"
        self._study = optuna.create_study(
            sampler=getattr(optuna.samplers, samplers[sampler])(seed=seed),
            pruner=pruners[pruner](),
            study_name=name,
        )
        self._kinds: dict[str, Any] = {}
        for key, domain in curves.param_space.items():
            if isinstance(domain, Categorical):
                self._kinds[key] = kinds.CategoricalDistribution(domain.categories)
            elif isinstance(domain, Integer):
                self._kinds[key] = kinds.IntDistribution(domain.lower, domain.upper - 1, log=_is_log(domain))
            else:
                self._kinds[key] = kinds.FloatDistribution(domain.lower, domain.upper, log=_is_log(domain))

    def begin(self, take: Take) -> Any:
        trial = self._study.ask(self._kinds)
        config = take(trial.params)
        # Samplers read the parameters from the storage. A second trial with the other configuration
        # would be in another bracket of the pruner than the one that the sampler was asked for.
        for key, kind in self._kinds.items():
            value = kind.to_internal_repr(config[key])
            self._study._storage.set_trial_param(trial._trial_id, key, value, kind)
        return trial

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        trial.report(loss, epoch)
        return bool(trial.should_prune())

    def end(self, trial: Any, epoch: int, loss: float, *, stopped: bool) -> None:
        if stopped:
            self._study.tell(trial, state=self._states.PRUNED)
        else:
            self._study.tell(trial, loss)


class _Ray:
    """Ray Tune's ASHA with a study of Optuna, which gets the last values, as it does from Ray."""

    def __init__(self, curves: CurveSet, seed: int, *, sampler: str) -> None:
        from ray.tune.schedulers import ASHAScheduler

        self._searcher = _Optuna(curves, seed, sampler=sampler, pruner="none")
        self._scheduler = ASHAScheduler(
            metric="loss", mode="min", max_t=EPOCHS, grace_period=1, reduction_factor=_ETA
        )
        self._numbers = count()

    def begin(self, take: Take) -> Any:
        trial = SimpleNamespace(trial_id=str(next(self._numbers)), asked=self._searcher.begin(take))
        self._scheduler.on_trial_add(None, trial)
        return trial

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        result = {"training_iteration": epoch, "loss": loss}
        return bool(self._scheduler.on_trial_result(None, trial, result) == "STOP")

    def end(self, trial: Any, epoch: int, loss: float, *, stopped: bool) -> None:
        self._scheduler.on_trial_complete(None, trial, {"training_iteration": epoch, "loss": loss})
        self._searcher.end(trial.asked, epoch, loss, stopped=False)


class _SyneTune:
    """A baseline of Syne Tune with its own searcher."""

    def __init__(self, curves: CurveSet, seed: int, *, baseline: str) -> None:
        from syne_tune import config_space as spaces
        from syne_tune.backend.trial_status import Trial
        from syne_tune.optimizer import baselines

        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        self._trial, self._numbers = Trial, count()
        space: dict[str, Any] = {}
        for key, domain in curves.param_space.items():
            if isinstance(domain, Categorical):
                space[key] = spaces.choice(list(domain.categories))
            elif isinstance(domain, Integer):
                make = spaces.lograndint if _is_log(domain) else spaces.randint
                space[key] = make(domain.lower, domain.upper - 1)
            else:
                make = spaces.loguniform if _is_log(domain) else spaces.uniform
                space[key] = make(domain.lower, domain.upper)
        self._space, self._domains = space, curves.param_space
        options = {"metric": "loss", "time_attr": "epoch", "max_t": EPOCHS, "grace_period": 1}
        self._scheduler = getattr(baselines, baseline)(
            space, **options, reduction_factor=_ETA, random_seed=seed
        )

    def begin(self, take: Take) -> Any:
        from datetime import datetime

        suggested = self._scheduler.suggest().config
        config = take({key: inside(self._domains[key], value) for key, value in suggested.items()})
        now = datetime(2026, 1, 1)
        own = {key: config[key] for key in self._space}
        trial = self._trial(trial_id=next(self._numbers), config=own, creation_time=now)
        self._scheduler.on_trial_add(trial)
        return trial

    def report(self, trial: Any, epoch: int, loss: float) -> bool:
        return bool(self._scheduler.on_trial_result(trial, {"epoch": epoch, "loss": loss}) == "STOP")

    def end(self, trial: Any, epoch: int, loss: float, *, stopped: bool) -> None:
        if stopped:
            self._scheduler.on_trial_remove(trial)
        else:
            self._scheduler.on_trial_complete(trial, {"epoch": epoch, "loss": loss})


def inside(domain: Any, value: Any) -> Any:
    """Return the nearest value of a domain. Syne Tune's BOHB suggests integers below it, too."""
    return min(max(value, domain.lower), domain.upper - 1) if isinstance(domain, Integer) else value


def _is_log(domain: Any) -> bool:
    return "log" in type(domain.sampler).__name__.lower()


def _peer(kind: Callable[..., Peer], **options: Any) -> Callable[[CurveSet, int], Peer]:
    return lambda curves, seed: kind(curves, seed, **options)


#: The searches of other packages: the packages that they need, and what makes them.
PEERS: Mapping[str, tuple[tuple[str, ...], Callable[[CurveSet, int], Peer]]] = {
    "Optuna: TPE, HyperbandPruner": (("optuna",), _peer(_Optuna, sampler="TPE", pruner="Hyperband")),
    "Optuna: GP, HyperbandPruner": (("optuna", "torch"), _peer(_Optuna, sampler="GP", pruner="Hyperband")),
    "Optuna: TPE, MedianPruner": (("optuna",), _peer(_Optuna, sampler="TPE", pruner="median")),
    "Ray Tune: ASHA, random": (("ray", "optuna"), _peer(_Ray, sampler="random")),
    "Ray Tune: ASHA, Optuna's TPE": (("ray", "optuna"), _peer(_Ray, sampler="TPE")),
    "Syne Tune: ASHA, random": (("syne_tune",), _peer(_SyneTune, baseline="ASHA")),
    "Syne Tune: BOHB": (("syne_tune",), _peer(_SyneTune, baseline="BOHB")),
    "Syne Tune: ASHA-CQR": (("syne_tune", "xgboost"), _peer(_SyneTune, baseline="ASHACQR")),
}


def _ours(scheduler: str, searcher: str) -> Callable[[str, int, int], list[float]]:
    """Return ``search(problem, seed, slots)`` by dasktune."""

    def run(problem: str, seed: int, slots: int) -> list[float]:
        # Imported here: an environment for the peers need not have what dasktune needs.
        from benchmarks.search_quality.full_trainings import Random, gaussian_process, search
        from dasktune.schedulers import ASHAScheduler, MedianStoppingRule, PromotingASHAScheduler
        from dasktune.search import TuneBOHB

        halving = {"max_t": EPOCHS, "reduction_factor": _ETA}
        rule = {"time_attr": "training_iteration", "check_at": [3, 9, 27]}
        schedulers: dict[str, Callable[[], Any]] = {
            "ASHA": lambda: ASHAScheduler(**halving),
            "promoting ASHA": lambda: PromotingASHAScheduler(**halving),
            "median at rungs": lambda: MedianStoppingRule(**rule),
        }
        searchers: dict[str, Callable[[], Any]] = {
            "random": Random,
            "TuneBOHB": TuneBOHB,
            "GaussianProcessSearch": lambda: gaussian_process(1),
        }
        return search(problem, searchers[searcher](), schedulers[scheduler](), seed, slots)

    return run


#: The searches of dasktune.
OURS: Mapping[str, Callable[[str, int, int], list[float]]] = {
    f"dasktune: {scheduler}, {searcher}": _ours(scheduler, searcher)
    for scheduler in ("ASHA", "promoting ASHA", "median at rungs")
    for searcher in ("random", "TuneBOHB", "GaussianProcessSearch")
}

#: What the others are compared with.
_BASE: Final = "dasktune: promoting ASHA, random"

#: A problem, a contender, a number of trials at a time, and a seed.
_Key = tuple[str, str, int, int]

#: Regrets that differ by less are equal: their losses differ by floating point errors.
_EQUAL: Final = 1e-12


class _Run(NamedTuple):
    """What a search found, and what it took."""

    #: The regret after each of `MOMENTS`.
    regrets: list[float]
    #: The processor time of the whole search.
    seconds: float


_Runs = Mapping[_Key, _Run]


class _Versus(NamedTuple):
    """Searches compared with those of `_BASE` by pairs of set and seed."""

    regrets: list[float]
    wins: int
    losses: int


def _search(curves: CurveSet, peer: Peer, seed: int, slots: int) -> list[float]:
    """Return the regrets of a peer after each of `MOMENTS`, in virtual time."""
    losses = curves.loss[:, seed % len(curves.seeds)]
    pace = default_rng([seed, 1]).uniform(0.5, 2, len(losses))
    pool = Pool(curves.param_space, curves.configs)
    running: list[tuple[float, int, int, Any, int]] = []
    numbers, best, found = count(), inf, []

    def begin(now: float) -> None:
        if pool.is_empty:
            return
        rows = []

        def take(suggested: Mapping[str, Any]) -> Mapping[str, Any]:
            rows.append(pool.take(suggested))
            return pool.configs[rows[-1]]

        trial = peer.begin(take)
        heapq.heappush(running, (now + pace[rows[-1]], next(numbers), rows[-1], trial, 1))

    for _ in range(slots):
        begin(0.0)
    while running and len(found) < _BUDGET:
        now, _, row, trial, epoch = heapq.heappop(running)
        loss = float(losses[row, epoch - 1])
        best = min(best, loss)
        found.append(best)
        stopped = peer.report(trial, epoch, loss) and epoch < EPOCHS
        if stopped or epoch == EPOCHS:
            peer.end(trial, epoch, loss, stopped=stopped)
            begin(now)
        else:
            heapq.heappush(running, (now + pace[row], next(numbers), row, trial, epoch + 1))
    lowest = losses.min(axis=1)
    scale = np.median(lowest) - lowest.min()
    ends = [found[min(moment * EPOCHS, len(found)) - 1] for moment in MOMENTS]
    return [float((loss - lowest.min()) / scale) for loss in ends]


def _run(key: _Key) -> _Run:
    began = time.process_time()
    regrets = _regrets(key)
    return _Run(regrets, round(time.process_time() - began, 2))


def _regrets(key: _Key) -> list[float]:
    problem, label, slots, seed = key
    if label in OURS:
        return OURS[label](problem, seed, slots)
    curves = load(problem)
    # Ray Tune and Syne Tune draw brackets from NumPy's global state, also if there is only one.
    np.random.seed(seed)  # noqa: NPY002
    return _search(curves, PEERS[label][1](curves, seed), seed, slots)


def _is_missing(label: str) -> bool:
    needs = ("dask",) if label in OURS else PEERS[label][0]
    return any(find_spec(name) is None for name in needs)


def _versus(runs: _Runs, label: str, slots: int, problems: Sequence[str], moment: int) -> _Versus:
    """Compare a search with `_BASE` after one of `MOMENTS`, over all seeds that both have."""
    own, base = [], []
    for (problem, name, width, seed), run in runs.items():
        other = runs.get((problem, _BASE, slots, seed))
        if name == label and width == slots and problem in problems and other is not None:
            own.append(run.regrets[moment])
            base.append(other.regrets[moment])
    wins = sum(one < two - _EQUAL for one, two in zip(own, base, strict=True))
    losses = sum(one > two + _EQUAL for one, two in zip(own, base, strict=True))
    return _Versus(own, wins, losses)


def _cell(label: str, found: _Versus, *, with_median: bool, is_clear: bool = False) -> str:
    middle = f" ({median(found.regrets):.3f})" if with_median else ""
    counts = f"{found.wins}:{found.losses}"
    against = "" if label == _BASE else f"; **{counts}**" if is_clear else f"; {counts}"
    return f"{fmean(found.regrets):.3f}{middle}{against}"


def _show(runs: _Runs) -> None:
    for slots in sorted({key[2] for key in runs}):
        own = {key: run for key, run in runs.items() if key[2] == slots}
        known = [name for name in set_names() if any(key[0] == name for key in own)]
        labels = [label for label in (*OURS, *PEERS) if _versus(own, label, slots, known, 0).regrets]
        print(f"\n{slots} trials at a time; {', '.join(known)}")
        print(f"mean regret (median); wins:losses against {_BASE}, by pairs of set and seed;")
        print("bold: p < 0.05 by the sign test, corrected for all tests of the table\n")
        print(_over_all_sets(own, labels, slots, known))
        print(f"\nby sets, after {MOMENTS[-1]} FT: mean regret; wins:losses\n")
        print(_by_sets(own, labels, slots, known), flush=True)


def _over_all_sets(runs: _Runs, labels: Sequence[str], slots: int, known: Sequence[str]) -> str:
    moments = range(len(MOMENTS))
    found = {(label, at): _versus(runs, label, slots, known, at) for label in labels for at in moments}
    tests = {key: sign_test(one.wins, one.losses) for key, one in found.items() if key[0] != _BASE}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    rows = []
    for label in labels:
        keys = [(label, at) for at in moments]
        cells = [
            _cell(label, found[key], with_median=True, is_clear=corrected.get(key, 1) < 0.05) for key in keys
        ]
        at_end = f"{tests[keys[-1]]:.2g}" if label != _BASE else ""
        seconds = median(run.seconds for key, run in runs.items() if key[1] == label)
        rows.append([label, len(found[keys[-1]].regrets), *cells, at_end, f"{seconds:.1f}"])
    after = [f"after {moment} FT" for moment in MOMENTS]
    return table(["search", "searches", *after, f"p at {MOMENTS[-1]}", "processor s"], rows)


def _by_sets(runs: _Runs, labels: Sequence[str], slots: int, known: Sequence[str]) -> str:
    rows = []
    for label in labels:
        found = [_versus(runs, label, slots, [name], len(MOMENTS) - 1) for name in known]
        rows.append([label, *(_cell(label, one, with_median=False) if one.regrets else "" for one in found)])
    return table(["search", *known], rows)


def _read(path: Path | None) -> _Runs:
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    parsed = map(json.loads, lines)
    return {(problem, label, slots, seed): _Run(*run) for problem, label, slots, seed, *run in parsed}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the searches that a file does not have yet, and print the tables of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality.peers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="searches of each (20)")
    parser.add_argument("--problems", nargs="+", choices=set_names(), default=set_names(), help="sets (all)")
    parser.add_argument("--contenders", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--slots", nargs="+", type=int, default=[4, 16], help="trials at a time (4 and 16)")
    parser.add_argument("--runs", type=Path, help="a file with a line for each search (none)")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no search after this time")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    runs = dict(_read(options.runs))
    missing = [label for label in options.contenders if _is_missing(label)]
    if missing:
        print(f"left out, because their packages are not installed: {'; '.join(missing)}")
    labels = [label for label in options.contenders if label not in missing]
    # All contenders of a seed before the next seed: a run that is cut short has them all.
    for seed, slots, problem, label in product(range(options.seeds), options.slots, options.problems, labels):
        key = problem, label, slots, seed
        if key in runs or time.monotonic() - begun > 60 * options.minutes:
            continue
        runs[key] = _run(key)
        if options.runs:
            with options.runs.open("a") as file:
                file.write(json.dumps([*key, *runs[key]]) + "\n")
    _show({key: run for key, run in runs.items() if key[0] in options.problems})


if __name__ == "__main__":
    # Small matrices are not worth a thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
