"""Searches of `dasktune.sklearn` and of others: ``python -m benchmarks.sklearn_searches``.

``grid``: the same fits by scikit-learn with joblib's processes, and by dasktune on as many worker
processes. Fits sleep, so only their scheduling counts. ``hyperband``: models that sleep, on 8
threads, compared with the time of one model and, with ``--daskml-python``, with dask-ml. ``early``:
candidates that ASHA stops, compared with a random search. ``passive``: Hyperband, compared with as
much training of models that are not stopped. ``memory``: the memory that 200 MB of data take in
driver and workers.

The sides run in turn: one run of each, then the next run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from joblib import Parallel, delayed
from scipy.stats import loguniform, randint
from sklearn import model_selection
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from benchmarks._measure import Row, Series, format_table, load, machine
from benchmarks.daskml_side import measure_daskml
from benchmarks.sklearn_memory import measure_memory
from benchmarks.sklearn_models import (
    CALLS_PER_S,
    PARAMETERS,
    Constant,
    Sleeper,
    rings,
    sleeping_data,
)
from dasktune.sklearn import GridSearchCV, HyperbandSearchCV, TuneSearchCV

__all__ = ["main"]

Keep = Callable[[str, str, dict[str, float]], None]

PARTS = ("grid", "hyperband", "early", "passive", "memory")

#: Seconds of a fit, the number of candidates, and the number of processes.
_FIT, _CANDIDATES, _PROCESSES = 0.25, 24, 2

#: As many calls as the published comparison had.
_MAX_ITER = 100

#: Samples of the rings, most passes of a model over them, its calls for that, and an accuracy.
_RINGS, _PASSES, _CALLS, _GOAL = 10_000, 50, 299, 0.84

#: Steps of a candidate that is not stopped, and the number of candidates.
_STEPS, _TRIED = 27, 16

ROWS = (
    Row("48 fits of 0.25 s", "s", "grid", "wall_s", ("joblib", "grid", "wall_s"), False),
    Row("48 fits of no time", "s", "empty", "wall_s", ("joblib", "empty", "wall_s"), False),
    Row("Hyperband", "s", "hyperband", "wall_s", ("one model", "hyperband", "wall_s"), False),
    Row("Hyperband", "s", "hyperband", "wall_s", ("dask-ml", "hyperband", "wall_s"), False),
    Row("its best value", "", "hyperband", "best", ("dask-ml", "hyperband", "best")),
    Row("its calls", "", "hyperband", "calls", ("dask-ml", "hyperband", "calls")),
    Row(
        "network on digits",
        "s",
        "network",
        "wall_s",
        ("scikit-learn", "network", "wall_s"),
        False,
    ),
    Row("its score", "", "network", "best", ("scikit-learn", "network", "best")),
    Row("boosting", "s", "boosting", "wall_s", ("scikit-learn", "boosting", "wall_s"), False),
    Row("its score", "", "boosting", "best", ("scikit-learn", "boosting", "best")),
    Row("Hyperband on rings", "", "rings", "best", ("passive", "rings", "best")),
    Row("its passes to 84 %", "", "rings", "passes", ("passive", "rings", "passes"), False),
    Row("200 MB: a worker's memory grows by", "MB", "memory", "worker_mb"),
    Row("200 MB: the driver's memory grows by", "MB", "memory", "driver_mb"),
)


@contextmanager
def _cluster(workers: int, threads: int) -> Iterator[LocalCluster]:
    with (
        LocalCluster(n_workers=workers, threads_per_worker=threads, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        yield cluster


def _timed(fit: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.monotonic()
    found = fit()
    return time.monotonic() - begun, found


def grid(runs: int, keep: Keep) -> None:
    """Run the same fits by joblib's processes and by the workers of a cluster."""
    X, y = np.zeros((200, 20)), np.arange(200) % 2
    space = {"number": list(range(_CANDIDATES))}

    def search(kind: Any, seconds: float) -> Any:
        options = {"n_jobs": _PROCESSES} if kind is model_selection.GridSearchCV else {}
        made = kind(Sleeper(seconds), space, cv=2, refit=False, **options)
        return lambda: made.fit(X, y)

    with _cluster(_PROCESSES, 1):
        for kind in (model_selection.GridSearchCV, GridSearchCV):
            search(kind, 0.0)()
        for _ in range(runs):
            for seconds, workload in ((_FIT, "grid"), (0.0, "empty")):
                for side, kind in (
                    ("joblib", model_selection.GridSearchCV),
                    ("dasktune", GridSearchCV),
                ):
                    keep(side, workload, {"wall_s": _timed(search(kind, seconds))[0]})


def hyperband(runs: int, keep: Keep, python: str | None, samples: int) -> None:
    """Search among models that sleep, on 8 threads."""
    import dask.array as da

    X, y = (da.from_array(one, chunks=-1) for one in sleeping_data(samples))
    with _cluster(2, 4):
        HyperbandSearchCV(Constant(), PARAMETERS, max_iter=1).fit(X, y)
        for seed in range(runs):
            search = HyperbandSearchCV(
                Constant(), PARAMETERS, max_iter=_MAX_ITER, aggressiveness=4, random_state=seed
            )
            wall, found = _timed(lambda search=search: search.fit(X, y))  # type: ignore[misc]
            calls = found.metadata_["partial_fit_calls"]
            figures = {"wall_s": wall, "best": found.best_score_, "calls": calls}
            keep("dasktune", "hyperband", figures)
            # One model, trained as long, on all samples.
            keep("one model", "hyperband", {"wall_s": _MAX_ITER * samples / CALLS_PER_S})
            if python is not None:
                figures = measure_daskml(python, samples, _MAX_ITER, seed)
                keep("dask-ml", "hyperband", figures)


def early(runs: int, keep: Keep) -> None:
    """Search with ASHA, and with scikit-learn's random search among as many candidates."""
    digits = load_digits(return_X_y=True)
    # One model has partial_fit, the other warm_start.
    network = {
        "alpha": loguniform(1e-6, 1),
        "learning_rate_init": loguniform(1e-5, 1e-1),
        "batch_size": [16, 32, 64],
    }
    trees = {
        "learning_rate": loguniform(1e-3, 1),
        "max_leaf_nodes": randint(3, 32),
        "l2_regularization": loguniform(1e-6, 10),
    }
    data = make_classification(1500, 20, n_informative=8, random_state=0)
    workloads = {
        "network": (MLPClassifier(random_state=0), network, digits, 1),
        "boosting": (HistGradientBoostingClassifier(random_state=0), trees, data, 3),
    }
    with _cluster(2, 1):
        for seed in range(runs):
            for name, (model, space, (X, y), step) in workloads.items():
                options = {"n_iter": _TRIED, "cv": 3, "random_state": seed, "refit": False}
                unstopped = clone(model).set_params(max_iter=_STEPS * step)
                searches = {
                    "scikit-learn": model_selection.RandomizedSearchCV(
                        unstopped, space, n_jobs=_PROCESSES, **options
                    ),
                    "dasktune": TuneSearchCV(
                        model,
                        space,
                        scheduler="asha",
                        max_iters=_STEPS,
                        iters_per_step=step,
                        **options,
                    ),
                }
                for side, search in searches.items():
                    wall, found = _timed(lambda s=search, X=X, y=y: s.fit(X, y))  # type: ignore[misc]
                    keep(side, name, {"wall_s": wall, "best": found.best_score_})


def passive(runs: int, keep: Keep) -> None:
    """Compare Hyperband with as much training of models that are not stopped.

    Both select by the score on a held-out block. The figure is the accuracy on 2,000 other samples.
    """
    import dask.array as da

    space = {
        "hidden_layer_sizes": [(24,), (12, 12), (6, 6, 6, 6), (4,) * 6, (12, 6, 3, 3)],
        "alpha": np.logspace(-6, -3, 100),
        "learning_rate_init": np.logspace(-4, -1, 100),
        "momentum": np.linspace(0, 1, 100),
        "power_t": np.linspace(0.1, 0.9, 50),
        "batch_size": [32, 64, 128, 256],
    }
    model = MLPClassifier(solver="sgd", learning_rate="invscaling", random_state=0)
    block = _PASSES * _RINGS // _CALLS
    passes_a_call = block / _RINGS
    with _cluster(_PROCESSES, 1):
        for seed in range(runs):
            X, y = rings(_RINGS + 2_000, seed)
            ours = [da.from_array(one[:_RINGS], chunks=(block, *one.shape[1:])) for one in (X, y)]
            active = HyperbandSearchCV(
                model, space, max_iter=_CALLS, aggressiveness=4, random_state=seed
            ).fit(*ours)
            calls = active.metadata_["partial_fit_calls"]
            # As many calls, which are enough for so many models.
            drawn = model_selection.ParameterSampler(space, calls // _CALLS, random_state=seed + 1000)
            models = Parallel(n_jobs=_PROCESSES)(
                delayed(_trained)(model, params, X[:_RINGS], y[:_RINGS], block, seed) for params in drawn
            )
            best = max(models, key=lambda one: one[0][-1][1])
            theirs = float(best[1].score(X[_RINGS:], y[_RINGS:]))
            first = min(
                (at for scores, _ in models for at, score in scores if score >= _GOAL), default=np.inf
            )
            figures = {"best": theirs, "passes": first * len(models) * passes_a_call}
            keep("passive", "rings", figures)
            found = float(active.best_estimator_.score(X[_RINGS:], y[_RINGS:]))
            passes = _calls_to(active.history_, _GOAL) * passes_a_call
            keep("dasktune", "rings", {"best": found, "passes": passes})


def _trained(
    model: Any, params: dict[str, Any], X: Any, y: Any, block: int, seed: int
) -> tuple[list[tuple[int, float]], Any]:
    """Train a model block by block; return its scores on a held-out block, and the model.

    It is scored after every tenth call.
    """
    blocks = np.array_split(np.random.RandomState(seed).permutation(len(X)), len(X) // block)
    held, train = blocks[0], blocks[1:]
    one = clone(model).set_params(**params)
    scores = []
    for call in range(1, _CALLS + 1):
        rows = train[call % len(train)]
        one.partial_fit(X[rows], y[rows], classes=np.arange(4))
        if call % 10 == 0 or call == _CALLS:
            scores.append((call, float(one.score(X[held], y[held]))))
    return scores, one


def _calls_to(history: list[dict[str, Any]], score: float) -> float:
    """Return the calls of all models until one reached `score`; infinity if none did."""
    made: dict[Any, int] = {}
    for record in history:
        made[record["model_id"]] = record["partial_fit_calls"]
        if record["score"] >= score:
            return float(sum(made.values()))
    return float("inf")


def _measure(options: argparse.Namespace) -> Series:
    series: Series = {}

    def keep(side: str, workload: str, figures: dict[str, float]) -> None:
        print(side, workload, figures, file=sys.stderr, flush=True)
        for figure, value in figures.items():
            series.setdefault((side, workload, figure), []).append(float(value))

    for part in options.only:
        print(f"{part}, load {load():.1f}", file=sys.stderr, flush=True)
        match part:
            case "grid":
                grid(options.runs, keep)
            case "hyperband":
                hyperband(options.runs, keep, options.daskml_python, options.samples)
            case "early":
                early(options.runs, keep)
            case "passive":
                passive(options.runs, keep)
            case "memory":
                for _ in range(options.runs):
                    keep("dasktune", "memory", measure_memory(options.megabytes))
    return series


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sklearn_searches", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    parser.add_argument("--daskml-python", help="an interpreter that has dask-ml")
    parser.add_argument(
        "--samples",
        type=int,
        default=6_000,
        help="that sleeping models see (6,000; the published comparison had 60,000)",
    )
    parser.add_argument("--megabytes", type=int, default=200, help="data of the last part (200)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    about, before = machine(), load()
    series = _measure(options)
    print(f"{about['date']}, {about['cores']} cores, load {before:.1f} to {load():.1f}")
    print(f"revision {about['revision']}\n\n{format_table(ROWS, series)}")


if __name__ == "__main__":
    main()
