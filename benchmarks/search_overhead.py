"""What trials of a searcher cost beyond its suggestions: ``python -m benchmarks.search_overhead``.

Optuna's default sampler suggests 100 trials that only compute a number. They run by dasktune, two
at a time on a cluster, by Optuna's own loop in one process, and with ``--ray-python`` by Ray Tune
on two CPUs. Then 16 trials of 2 s run 4 at a time, which takes at least 8 s. The sides run in turn.
"""

from __future__ import annotations

import argparse
import sys
import time

import optuna
from distributed import LocalCluster

import dasktune as tune
from benchmarks import trainables
from benchmarks._measure import Figures, Row, Series, Size, Timeline, format_table, load, machine
from benchmarks.experiments import local_cluster, run, warm_up
from benchmarks.ray_side import measure_ray
from benchmarks.workloads import RAY, searched, valley
from dasktune.search import OptunaSearch

__all__ = ["main"]

_SIZE = RAY["searched"]

_SLEEPERS = Size(trials=16, slots=4)

_SECONDS = 2.0


def _row(label: str, unit: str, figure: str, side: str, workload: str) -> Row:
    ours = workload.removesuffix("_reuse")
    return Row(label, unit, ours, figure, (side, workload, figure), higher_is_better=False)


_COST = "driver_cpu_us_per_trial"

ROWS = (
    _row("100 trials, and Optuna's own loop", "s", "wall_s", "optuna", "searched"),
    _row("100 trials, and Ray Tune", "s", "wall_s", "ray", "searched"),
    _row("100 trials, and Ray Tune reusing actors", "s", "wall_s", "ray", "searched_reuse"),
    _row("driver's processor time, trial", "us", _COST, "ray", "searched"),
    _row("16 trials of 2 s on 4 slots", "s", "wall_s", "ideal", "sleepers"),
)


def run_ours(cluster: LocalCluster, size: Size, seconds: float) -> Timeline:
    """Run trials that take `seconds` each."""
    return run(
        cluster,
        trainables.searched,
        size,
        space={**searched(tune), "seconds": seconds},
        search_alg=OptunaSearch(metric="_metric", mode="min", seed=0),
    )


def optuna_seconds() -> float:
    """Return the seconds that Optuna's own loop takes."""

    def objective(trial: optuna.Trial) -> float:
        return valley(
            {
                "x": trial.suggest_float("x", 0, 1),
                "lr": trial.suggest_float("lr", 1e-4, 1, log=True),
                "layers": trial.suggest_int("layers", 1, 8),
                "kind": trial.suggest_categorical("kind", ["a", "b", "c"]),
            }
        )

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    begun = time.monotonic()
    study.optimize(objective, n_trials=_SIZE.trials)
    return time.monotonic() - begun


def _measure(runs: int, ray_python: str | None) -> Series:
    series: Series = {}

    def keep(side: str, workload: str, figures: Figures) -> None:
        for figure, value in figures.items():
            series.setdefault((side, workload, figure), []).append(value)

    with local_cluster() as cluster, local_cluster(2, _SLEEPERS.slots // 2) as wide:
        for one in (cluster, wide):
            warm_up(one)
        for number in range(runs):
            print(f"run {number + 1}", file=sys.stderr, flush=True)
            keep("dasktune", "searched", run_ours(cluster, _SIZE, 0.0).figures())
            keep("optuna", "searched", {"wall_s": optuna_seconds()})
            for workload in ("searched", "searched_reuse") if ray_python else ():
                keep("ray", workload, measure_ray(str(ray_python), workload, RAY[workload])[0])
            keep("dasktune", "sleepers", run_ours(wide, _SLEEPERS, _SECONDS).figures())
            ideal = _SECONDS * _SLEEPERS.trials / _SLEEPERS.slots
            keep("ideal", "sleepers", {"wall_s": ideal})
    return series


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.search_overhead", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--ray-python", help="an interpreter that has ray[tune] and optuna")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    about, before = machine(), load()
    series = _measure(options.runs, options.ray_python)
    print(f"{about['date']}, {about['cores']} cores, load {before:.1f} to {load():.1f}")
    print(f"revision {about['revision']}\n\n{format_table(ROWS, series)}")


if __name__ == "__main__":
    main()
