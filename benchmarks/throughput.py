"""Measure dasktune, and optionally Ray Tune: ``python -m benchmarks.throughput``.

With ``--ray-python`` both sides run in turn, workload by workload, so that other load slows both.
Every figure is a median of ``--runs`` runs. No figure makes the command fail.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from distributed import LocalCluster

from benchmarks._measure import Figures, Row, Series, Size, format_table, load, machine
from benchmarks.concurrency import many, slots, threads
from benchmarks.experiments import EXPERIMENTS, local_cluster, warm_up
from benchmarks.limits import limits
from benchmarks.ray_side import measure_ray
from benchmarks.recovery import recovery
from benchmarks.restore import restore
from benchmarks.simulator import simulator
from benchmarks.workloads import OURS, RAY, scaled
from dasktune.cluster.connection import connect

__all__ = ["main"]

_RAW = ("raw", "limits", "checkpoints_per_s")

#: The rows of the table. A later row may compare the same figure of dasktune with another one.
ROWS = (
    Row("no-op trials", "/s", "noop", "trials_per_s", ("ray", "noop", "trials_per_s")),
    Row(
        "no-op trials, Ray reusing actors",
        "/s",
        "noop",
        "trials_per_s",
        ("ray", "noop_reuse", "trials_per_s"),
    ),
    Row(
        "no-op trials, steady",
        "/s",
        "noop",
        "steady_trials_per_s",
        ("ray", "noop", "steady_trials_per_s"),
    ),
    Row("results, function", "/s", "function", "results_per_s", ("ray", "function", "results_per_s")),
    Row(
        "results, function, steady",
        "/s",
        "function",
        "steady_results_per_s",
        ("ray", "function", "steady_results_per_s"),
    ),
    Row("results, class", "/s", "class", "results_per_s", ("ray", "class", "results_per_s")),
    Row(
        "1 MB checkpoints, keep 2",
        "/s",
        "checkpoint",
        "results_per_s",
        ("ray", "checkpoint", "results_per_s"),
    ),
    Row("the same, compared with plain fsspec", "/s", "checkpoint", "results_per_s", _RAW),
    Row(
        "first result after fit()",
        "s",
        "first",
        "first_result_s",
        ("ray", "first", "first_result_s"),
        higher_is_better=False,
    ),
    Row(
        "64 x 1 s on 16 slots: wall over ideal",
        "",
        "slots",
        "over_ideal",
        ("ray", "slots", "over_ideal"),
        higher_is_better=False,
    ),
    Row(
        "the same, Ray reusing actors",
        "",
        "slots",
        "over_ideal",
        ("ray", "slots_reuse", "over_ideal"),
        higher_is_better=False,
    ),
    Row("8 x 1 s on one worker of 8 threads", "s", "threads", "wall_s"),
    Row("1,000 trials at once: wait for a decision, median", "s", "many", "wait_median_s"),
    Row("1,000 trials at once: wait for a decision, p99", "s", "many", "wait_p99_s"),
    Row("1,000 trials at once: driver's share of a core", "", "many", "driver_core_share"),
    Row(
        "SIGKILL of the worker to the next result",
        "s",
        "recovery",
        "kill_to_result_s",
        ("ray", "recovery", "kill_to_result_s"),
        higher_is_better=False,
    ),
    Row(
        "driver's processor time, streamed result",
        "us",
        "function",
        "driver_cpu_us_per_result",
        ("ray", "function", "driver_cpu_us_per_result"),
        higher_is_better=False,
    ),
    Row(
        "driver's processor time, no-op trial",
        "us",
        "noop",
        "driver_cpu_us_per_trial",
        ("ray", "noop", "driver_cpu_us_per_trial"),
        higher_is_better=False,
    ),
    Row("limit: plain Dask tasks", "/s", "limits", "tasks_per_s"),
    Row("limit: call of a Dask actor", "ms", "limits", "actor_call_ms"),
    Row("limit: checkpoints by plain fsspec", "/s", "limits", "checkpoints_per_s"),
    Row("simulated events, FIFO, 1,000 trials", "/s", "simulator", "fifo_few_per_s"),
    Row("simulated events, FIFO, 10,000 trials", "/s", "simulator", "fifo_many_per_s"),
    Row("simulated events, ASHA, 1,000 trials", "/s", "simulator", "asha_few_per_s"),
    Row("simulated events, ASHA, 10,000 trials", "/s", "simulator", "asha_many_per_s"),
    Row("driver's memory, finished trial of 10 results", "B", "simulator", "bytes_per_trial"),
    Row("restoring 10,000 trials from 100,000 results", "s", "restore", "by_journal_s"),
    Row("restoring 10,000 trials from a snapshot", "s", "restore", "by_snapshot_s"),
)

_OWN_CLUSTER = {"slots": slots, "threads": threads, "many": many, "recovery": recovery}

WORKLOADS = (*EXPERIMENTS, *_OWN_CLUSTER, "limits", "simulator", "restore")


class Bench:
    """Runs workloads and keeps their figures.

    Parameters
    ----------
    scale : float
        The share of each workload to run; 1 runs all of it.
    ray_python : str or None
        The interpreter that has Ray.
    """

    def __init__(self, *, scale: float, ray_python: str | None) -> None:
        self._scale = scale
        self._ray_python = ray_python
        self.series: Series = {}
        self.ray_versions: dict[str, str] = {}

    def measure(self, name: str, cluster: LocalCluster) -> None:
        """Run a workload once on each side."""
        self._keep("dasktune", name, self._ours(name, cluster))
        for theirs in (name, f"{name}_reuse"):
            if self._ray_python and theirs in RAY:
                self._keep("ray", theirs, self._ray(theirs))

    def _ours(self, name: str, cluster: LocalCluster) -> Figures:
        if name == "simulator":
            return simulator(round(1_000 * self._scale), round(10_000 * self._scale))
        if name == "restore":
            return restore(round(10_000 * self._scale))
        if name == "limits":
            figures = limits(cluster, self._size(OURS, "checkpoint"))
            self._keep("raw", name, figures)
            return figures
        size = self._size(OURS, name)
        return _OWN_CLUSTER[name](size) if name in _OWN_CLUSTER else EXPERIMENTS[name](cluster, size)

    def _ray(self, name: str) -> Figures:
        size = self._size(RAY, name)
        figures, self.ray_versions = measure_ray(str(self._ray_python), name, size)
        return figures

    def _size(self, sizes: Mapping[str, Size], name: str) -> Size:
        return scaled(name, sizes[name], self._scale)

    def _keep(self, side: str, workload: str, figures: Figures) -> None:
        for figure, value in figures.items():
            self.series.setdefault((side, workload, figure), []).append(value)


@contextmanager
def _shared_cluster() -> Iterator[LocalCluster]:
    with local_cluster() as cluster:
        warm_up(cluster)
        yield cluster


def _hide_workers() -> None:
    """Make dasktune find that it cannot reach the workers, as from outside of their network."""

    async def unreachable(client: Any) -> bool:
        return False

    connect._reaches_a_worker = unreachable


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each workload (3)")
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, default=WORKLOADS, help="workloads to run (all)"
    )
    parser.add_argument("--ray-python", help="an interpreter that has ray[tune]; runs Ray Tune, too (none)")
    parser.add_argument("--json", type=Path, help="the file to write every run to (none)")
    parser.add_argument(
        "--via-scheduler", action="store_true", help="call workers through the scheduler only"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="the share of each workload to run (1.0)")
    return parser.parse_args(arguments)


def _report(bench: Bench, about: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    theirs = f"; Ray {bench.ray_versions['ray']}" if bench.ray_versions else ""
    return "\n".join(
        [
            f"{about['date']}, {about['cores']} cores, {about['memory_gib']} GiB, "
            f"load {about['load'][0]:.1f} to {about['load'][1]:.1f}, {about['system']}",
            f"revision {about['revision']}, {facts}{theirs}",
            f"command: {about['command']}",
            "",
            format_table(ROWS, bench.series),
        ]
    )


def _write(path: Path, bench: Bench, about: Mapping[str, Any]) -> None:
    series = [
        {"side": side, "workload": workload, "figure": figure, "runs": values}
        for (side, workload, figure), values in bench.series.items()
    ]
    content = {"about": about, "ray": bench.ray_versions, "series": series}
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    about = machine()
    given = sys.argv[1:] if arguments is None else arguments
    about["command"] = " ".join(["python -m benchmarks.throughput", *given])
    before = load()
    bench = Bench(scale=options.scale, ray_python=options.ray_python)
    if options.via_scheduler:
        _hide_workers()
    with _shared_cluster() as cluster:
        for run, name in product(range(options.runs), options.only):
            print(f"run {run + 1}: {name}", file=sys.stderr, flush=True)
            bench.measure(name, cluster)
            about["load"] = [before, load()]
            if options.json:
                # Write after each workload, so that an interrupted run keeps its figures.
                _write(options.json, bench, about)
    print(_report(bench, about))


if __name__ == "__main__":
    main()
