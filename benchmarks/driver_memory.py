"""The driver's memory by results, and the time to restore: ``python -m benchmarks.driver_memory``.

Trials report in turn to the state machine, and its records go to a real journal on the local disk,
with a snapshot at the end. No trial runs anywhere, so the figures are those of the driver alone.
Each size has a process of its own. Times are processor time; memory is the resident set beyond what
the process had before the first result, at its peak and at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dasktune as tune
from benchmarks._measure import Figures
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.events import ExperimentEvent, ResourcesGranted, ResultReported, Suggested, TrialStarted
from dasktune.trial.journal_codec import journal_record
from dasktune.trial.metrics import flatten
from dasktune.trial.resources import as_placement_group
from dasktune.tuner.restore import ResumeConfig, restore_experiment
from dasktune.tuner.saved_setup import setup_of

__all__ = ["driver_memory"]

_MIB = 1024**2

#: Results that a trial reports before the next one does.
_BATCH = 50


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MIB


def _row(trial: int, step: int) -> dict[str, Any]:
    seconds = step * 0.0123 + trial * 0.001
    return {
        "loss": 1 / (step + trial + 0.1),
        "accuracy": step * 0.000013 + trial / 7,
        "training_iteration": step,
        "iterations_since_restore": step,
        "time_this_iter_s": 0.0123 + step * 1e-9,
        "time_total_s": seconds,
        "time_since_restore": seconds,
        "timestamp": 1_700_000_000 + step // 80,
        "date": "2026-11-24_15-00-00",
        "done": False,
        "pid": 4711,
        "hostname": "node-17",
        "node_ip": "10.0.3.17",
    }


class _Driver:
    def __init__(self, experiment: ExperimentMachine, storage: Storage, *, compress: bool) -> None:
        self.experiment = experiment
        self.store = ExperimentStore(storage, compress_journal=compress)

    def handle(self, event: ExperimentEvent) -> None:
        handled = self.experiment.handle(event)
        trial = self.experiment.trials.get(getattr(event, "trial_id", ""))
        self.store.append(journal_record(event, handled.actions, trial))

    def start(self) -> str:
        name = self.experiment.next_trial_id
        answer = self.experiment.search.next_trial(name)
        cpu = as_placement_group({"CPU": 1})
        self.handle(Suggested(trial_id=name, config=answer.config, tag=answer.tag, resources=cpu, time=0.0))
        self.handle(ResourcesGranted(trial_id=name, time=0.0))
        self.handle(TrialStarted(trial_id=name, incarnation=1, worker="tcp://w:1", time=0.0, seq=1))
        return name

    def report(self, name: str, trial: int, step: int) -> None:
        event = ResultReported(
            trial_id=name,
            incarnation=1,
            seq=step + 1,
            time=float(step),
            metrics=flatten(_row(trial, step)),
            awaits=False,
        )
        self.handle(event)


def _measure(trials: int, results: int, *, compress: bool, read: bool) -> Figures:
    parts = (
        tune.TuneConfig(metric="loss", mode="min", num_samples=trials, seed=0),
        tune.RunConfig(compress_journal=compress),
        {"x": tune.uniform(0, 1)},
    )
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        storage = Storage(directory)
        setup_of(*parts).write(storage)
        driver = _Driver(build_experiment(*parts), storage, compress=compress)
        names = [driver.start() for _ in range(trials)]
        driver.store.commit()
        before, begun = _resident(), time.process_time()
        for first in range(1, results // trials + 1, _BATCH):
            for trial, name in enumerate(names):
                for step in range(first, min(first + _BATCH, results // trials + 1)):
                    driver.report(name, trial, step)
                driver.store.commit()
        seconds, at_end = time.process_time() - begun, _resident() - before
        begun = time.process_time()
        driver.store.save_snapshot(driver.experiment.state_dict)
        driver.store.close()
        snapshot_s = time.process_time() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        size = sum(len(storage.read_bytes(f"snapshots/{name}")) for name in storage.names("snapshots"))
        journal = sum(path.stat().st_size for path in Path(directory, "journal").iterdir())
        begun = time.process_time()
        restored = restore_experiment(
            storage, tune_config=None, run_config=None, param_space=None, resume=ResumeConfig()
        )
        restore_s, begun = time.process_time() - begun, time.process_time()
        count = _count_read if read else len
        found = sum(count(trial.history) for trial in restored.experiment.trials.values())
        read_s = time.process_time() - begun
    if found != results // trials * trials:
        raise RuntimeError(f"{found} of {results} results were restored")
    return {
        "us_per_result": seconds / results * 1e6,
        "peak_mib": peak,
        "end_mib": at_end,
        "bytes_per_result": at_end * _MIB / results,
        "snapshot_mib": size / _MIB,
        "snapshot_s": snapshot_s,
        "journal_mib": journal / _MIB,
        "restore_s": restore_s,
        **({"read_all_s": read_s} if read else {}),
    }


def _count_read(rows: Iterable[Any]) -> int:
    return sum(1 for _ in rows)


def driver_memory(
    trials: int = 1_000, results: int = 1_000_000, *, compress: bool = False, read: bool = True
) -> Figures:
    """Return the figures of one size, measured in a process of its own.

    Parameters
    ----------
    trials : int, default=1_000
        Number of trials, all of which report.
    results : int, default=1_000_000
        Number of results of all trials together.
    compress : bool, default=False
        Whether to compress the journal.
    read : bool, default=True
        Whether to read all results of the restored experiment, too.
    """
    command = [sys.executable, "-m", "benchmarks.driver_memory", "--one", str(trials), str(results)]
    command += ["--compress"] * compress + ["--no-read"] * (not read)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Figures = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.driver_memory", description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000, help="number of trials (1,000)")
    parser.add_argument(
        "--results", type=int, nargs="+", default=[100_000, 1_000_000], help="results of all trials together"
    )
    parser.add_argument("--one", type=int, nargs=2, metavar=("TRIALS", "RESULTS"), help=argparse.SUPPRESS)
    parser.add_argument("--compress", action="store_true", help="compress the journal")
    parser.add_argument("--no-read", action="store_true", help="do not read all results at the end")
    arguments = parser.parse_args()
    options = {"compress": arguments.compress, "read": not arguments.no_read}
    if arguments.one:
        print(json.dumps(_measure(*arguments.one, **options)))
        return
    for results in arguments.results:
        print(f"{results:,} results of {arguments.trials:,} trials")
        for name, value in driver_memory(arguments.trials, results, **options).items():
            print(f"  {name:18} {value:,.2f}")


if __name__ == "__main__":
    main()
