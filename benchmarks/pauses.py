"""What pauses cost, with checkpoints in memory and in the storage: ``python -m benchmarks.pauses``.

Three trials on two workers are paused at each of their steps, so they resume on either worker. The
time of a pause is from the result until its resources are free. The time of resuming is from the
grant of the resources until the next result. The slow store is simulated: each request takes 20 ms,
and its bandwidth is 100 MB/s.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import Any

from distributed import LocalCluster

import dasktune as tune
from benchmarks import trainables
from benchmarks._measure import Size, milliseconds
from benchmarks.checkpoints import SLOW
from benchmarks.experiments import run
from benchmarks.transfer_table import print_table
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Decision, Pause
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial

__all__ = ["pauses"]

#: Label -> bytes of a checkpoint, URL scheme of the storage.
_CASES = {
    "1 kB, disk": (1_000, ""),
    "1 MB, disk": (1_000_000, ""),
    "50 MB, disk": (50_000_000, ""),
    "1 MB, slow store": (1_000_000, "slow://"),
    "50 MB, slow store": (50_000_000, "slow://"),
}

#: Where checkpoints are kept -> their limit in memory, in bytes.
_KINDS = {"memory": 1_000_000_000, "storage": 0}

_Durations = dict[str, list[float]]


class PauseAtEachResult(FIFOScheduler):
    """Pauses each trial at each of its results."""

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        return EVERY_RESULT

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return Pause("to measure a pause")


def pauses(cluster: LocalCluster, size: int, scheme: str, limit: int, steps: int) -> _Durations:
    """Return the seconds of each pause and of each resumption, on the same or the other worker."""
    timeline = run(
        cluster,
        trainables.Model,
        Size(trials=3, steps=steps),
        space={"size": size},
        scheduler=PauseAtEachResult(),
        scheme=scheme,
        storage_options=SLOW if scheme else {},
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=False, memory_limit=limit),
    )
    durations: _Durations = defaultdict(list)
    by_trial: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in timeline.journal:
        by_trial[record.get("trial_id", "")].append(record)
    for records in by_trial.values():
        _read(records, durations)
    return durations


def _read(records: list[dict[str, Any]], durations: _Durations) -> None:
    worker, since, granted, way = "", 0.0, 0.0, ""
    for record in records:
        now = record["time"]
        match record["event"]:
            case "ResourcesGranted":
                granted = now
            case "TrialStarted":
                way = "same worker" if record["worker"] == worker else "other worker"
                way = way if worker else ""
                worker = record["worker"]
            case "ResultReported":
                since = now
                if way:
                    durations[way].append(now - granted)
            case "TrialPaused":
                durations["pause"].append(now - since)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pauses", description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="steps of each trial (30)")
    steps = parser.parse_args(arguments).steps

    def row(cluster: LocalCluster, label: str, kind: str) -> list[str]:
        durations = pauses(cluster, *_CASES[label], _KINDS[kind], steps)
        ways = "pause", "same worker", "other worker"
        return [label, kind, *(milliseconds(durations[way]) for way in ways)]

    print_table(
        ["checkpoint", "kept in", "pause", "resuming on the same worker", "on the other worker"],
        list(product(_CASES, _KINDS)),
        row,
    )


if __name__ == "__main__":
    main()
