"""The same workloads for Ray Tune, run by another interpreter, which has ``ray[tune]``.

``benchmarks.throughput --ray-python`` runs this as ``<python> -m benchmarks.ray_baseline function
--trials 4 --steps 2000 --slots 2``. The last line of its output has the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._measure import Figures, Size, Timeline, now, versions
from benchmarks.workloads import CHECKPOINT_BYTES, STEP_SECONDS, searched, valley

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import tune

__all__ = ["main"]


class RecordTimes(tune.Callback):
    """Records when the driver receives results and ends of trials."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def on_trial_result(self, *arguments: Any, **facts: Any) -> None:
        self.timeline.results.append(now())

    def on_trial_complete(self, *arguments: Any, **facts: Any) -> None:
        self.timeline.ends.append(now())


def noop(config: dict[str, Any]) -> dict[str, float]:
    return {"_metric": config["x"]}


def searches(config: dict[str, Any]) -> dict[str, float]:
    return {"_metric": valley(config)}


def steps(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        tune.report({"loss": step + config["x"]})


class Steps(tune.Trainable):
    """The same as a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.last = config["x"], config["steps"]

    def step(self) -> dict[str, Any]:
        return {"loss": self.iteration + self.x, "done": self.iteration + 1 == self.last}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load nothing."""


def checkpoints(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "model").write_bytes(os.urandom(CHECKPOINT_BYTES))
        for step in range(config["steps"]):
            tune.report({"loss": step}, checkpoint=tune.Checkpoint.from_directory(directory))


def second(config: dict[str, Any]) -> dict[str, float]:
    time.sleep(1.0)
    return {"_metric": config["x"]}


def dies_once(config: dict[str, Any]) -> None:
    marker = Path(config["marker"])
    for step in range(config["steps"]):
        time.sleep(STEP_SECONDS)
        if step == config["steps"] // 2 and not marker.exists():
            marker.write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        tune.report({"loss": step})


TRAINABLES: dict[str, Callable[..., Any]] = {
    "noop": noop,
    "noop_reuse": noop,
    "function": steps,
    "class": Steps,
    "checkpoint": checkpoints,
    "first": noop,
    "slots": second,
    "slots_reuse": second,
    "recovery": dies_once,
    "searched": searches,
    "searched_reuse": searches,
}


def fit(workload: str, size: Size, directory: str) -> Timeline:
    """Run an experiment with Ray's defaults, except for what the workload measures."""
    timeline = Timeline(begun=0.0)
    tuner = tune.Tuner(
        TRAINABLES[workload],
        param_space={
            "x": tune.uniform(0, 1),
            "steps": size.steps,
            "marker": f"{directory}/killed-at",
            **(searched(tune) if workload.startswith("searched") else {}),
        },
        # By default Ray decides whether to reuse actors.
        tune_config=tune.TuneConfig(
            num_samples=size.trials,
            reuse_actors=workload.endswith("_reuse") or None,
            search_alg=_search_alg(workload),
        ),
        run_config=tune.RunConfig(
            name="bench",
            storage_path=directory,
            verbose=0,
            callbacks=[RecordTimes(timeline)],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2 if workload == "checkpoint" else None),
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    )
    cpu = time.process_time()
    timeline.begun = now()
    grid = tuner.fit()
    timeline.ended = now()
    timeline.cpu = time.process_time() - cpu
    if grid.num_errors:
        raise RuntimeError(f"the workload failed: {grid.errors}")
    return timeline


def _search_alg(workload: str) -> Any:
    """Return Optuna's default sampler for workloads with a search."""
    if not workload.startswith("searched"):
        return None
    # Only this workload needs it.
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(metric="_metric", mode="min", seed=0)


def measure(workload: str, size: Size) -> Figures:
    """Warm Ray up with a small workload, then run one and return its figures."""
    with tempfile.TemporaryDirectory(prefix="ray-bench-") as directory:
        fit("noop", Size(trials=2), f"{directory}/warm")
        timeline = fit(workload, size, f"{directory}/timed")
        figures = timeline.figures()
        if workload.startswith("slots"):
            figures["over_ideal"] = figures["wall_s"] / -(-size.trials // size.slots)
        marker = Path(directory, "timed", "killed-at")
        if marker.exists():
            killed = float(marker.read_text())
            figures["kill_to_result_s"] = min(t for t in timeline.results if t > killed) - killed
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=TRAINABLES)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2)
    options = parser.parse_args()
    size = Size(trials=options.trials, steps=options.steps, slots=options.slots)
    ray.init(num_cpus=size.slots, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        figures = measure(options.workload, size)
    finally:
        ray.shutdown()
    print(json.dumps({"versions": versions(), "figures": figures}))


if __name__ == "__main__":
    main()
