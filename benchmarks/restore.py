"""How long it takes to restore a large experiment: ``python -m benchmarks.restore``.

The experiment runs in virtual time, with the store of a real one on the local disk. It is restored
once from its complete journal, and once from a snapshot at its end.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import tempfile
import time
from collections.abc import Generator
from typing import Any

import dasktune as tune
from benchmarks._measure import Figures
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.snapshots import DIRECTORY, Snapshot, Snapshots
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.resources import as_placement_group
from dasktune.tuner.restore import RestoredExperiment, ResumeConfig, restore_experiment
from dasktune.tuner.saved_setup import setup_of

__all__ = ["restore"]

_STEPS = 10

_SLOTS = 64

#: Fields that make a row as long as one of a real trial.
_USUAL_FIELDS = {"hostname": "node-17", "node_ip": "10.0.3.17", "pid": 4711, "lr": 0.1, "batch_size": 64}


def _curve(config: dict[str, Any]) -> Generator[tuple[dict[str, Any], float], None, None]:
    for step in range(_STEPS):
        yield {"loss": config["x"] / (step + 1), "accuracy": 1 - config["x"], **_USUAL_FIELDS}, 1.0


def _make(storage: Storage, trials: int) -> None:
    """Run an experiment to its end, and write what a driver writes, but no snapshots."""
    parts = (
        tune.TuneConfig(metric="loss", mode="min", num_samples=trials, seed=0),
        tune.RunConfig(),
        {"x": tune.uniform(0, 1)},
    )
    setup_of(*parts).write(storage)
    clock = ManualClock()
    cpu = as_placement_group({"CPU": 1})
    TrialRunner(
        build_experiment(*parts),
        SimulatedTrialExecutor(_curve, clock=clock, slots=_SLOTS),
        store=ExperimentStore(storage),
        clock=clock,
        resources_for=lambda config: cpu,
    ).run()
    for name in storage.names(DIRECTORY):
        storage.remove(f"{DIRECTORY}/{name}")


def _restored(storage: Storage, name: str) -> tuple[RestoredExperiment, Figures]:
    gc.collect()
    begun, cpu = time.perf_counter(), time.process_time()
    session = restore_experiment(
        storage, tune_config=None, run_config=None, param_space=None, resume=ResumeConfig()
    )
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return session, {f"by_{name}_s": wall, f"by_{name}_cpu_s": cpu}


def restore(trials: int = 10_000, profile: bool = False) -> Figures:
    """Restore an experiment of trials with 10 results each, from its journal and from a snapshot.

    Parameters
    ----------
    trials : int, default=10_000
        The number of trials.
    profile : bool, default=False
        Print a profile of restoring from the journal, which slows it down.
    """
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        storage = Storage(directory)
        _make(storage, trials)
        profiler = cProfile.Profile()
        if profile:
            profiler.enable()
        session, by_journal = _restored(storage, "journal")
        profiler.disable()
        if profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        known = session.experiment.state_dict()
        if len(known["trials"]) != trials:
            raise RuntimeError(f"{len(known['trials'])} of {trials} trials were restored")
        end = session.end
        Snapshots(storage).write(Snapshot(end.epoch, end.position, known, end.journal))
        del session, known
        _, by_snapshot = _restored(storage, "snapshot")
    return by_journal | by_snapshot


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.restore", description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="with 10 results each (10,000)")
    parser.add_argument(
        "--profile", action="store_true", help="print a profile of restoring from the journal"
    )
    for name, value in restore(**vars(parser.parse_args())).items():
        print(f"{name:18} {value:.2f}")


if __name__ == "__main__":
    main()
