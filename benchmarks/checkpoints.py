"""What checkpoints cost, on a disk and on a slow store: ``python -m benchmarks.checkpoints``.

For comparison the same worker writes the same files by plain fsspec, with a checksum and a
manifest. The slow store is simulated: each request takes 20 ms, and its bandwidth is 100 MB/s.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from statistics import median
from typing import Any

import fsspec
from distributed import Client, LocalCluster

import dasktune as tune
from benchmarks import trainables
from benchmarks._measure import Figures, Size, load, machine
from benchmarks.experiments import local_cluster, run, warm_up

__all__ = ["SLOW", "checkpoints", "register_slow_store"]

SLOW = {"latency": 0.02, "bandwidth": 100e6}

#: Number of newest checkpoints that both sides keep.
_KEEP = 2


@dataclass(frozen=True)
class Case:
    """One workload: a trial that saves a file at each step."""

    label: str
    #: Bytes of the file.
    size: int
    steps: int
    #: Seconds of training before each checkpoint.
    step_s: float = 0.0
    #: Scheme of the storage's URL; "" for a local disk.
    scheme: str = ""

    @property
    def options(self) -> dict[str, float]:
        """The options of the storage."""
        return SLOW if self.scheme else {}


CASES = (
    Case("1 MB, disk", 1_000_000, 300),
    Case("100 MB, disk", 100_000_000, 20),
    Case("1 MB, slow store", 1_000_000, 40, scheme="slow://"),
    Case("100 MB, slow store", 100_000_000, 8, scheme="slow://"),
    Case("1 MB, slow store, steps of 0.1 s", 1_000_000, 40, 0.1, "slow://"),
    Case("100 MB, slow store, steps of 1.5 s", 100_000_000, 8, 1.5, "slow://"),
)


def checkpoints(cluster: LocalCluster, case: Case) -> Figures:
    """Measure the steps per second with dasktune and with plain fsspec, and the time of reports."""
    bare = _bare_rate(cluster, case)
    timeline = run(
        cluster,
        trainables.saves,
        Size(trials=1, steps=case.steps, slots=1),
        space={"size": case.size, "step_s": case.step_s},
        scheme=case.scheme,
        storage_options=case.options,
        checkpoint_config=tune.CheckpointConfig(num_to_keep=_KEEP),
    )
    # Each result has the time of the previous report, and the first one has none.
    waits = timeline.waits[1:]
    rate = timeline.figures()["steady_results_per_s"]
    return {
        "steps_per_s": rate,
        "mb_per_s": rate * case.size / 1e6,
        "bare_steps_per_s": bare,
        "bare_mb_per_s": bare * case.size / 1e6,
        "of_bare": rate / bare,
        "report_s": median(waits),
        "longest_report_s": max(waits),
    }


def _bare_rate(cluster: LocalCluster, case: Case) -> float:
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory, Client(cluster) as client:
        fields = (case.scheme or "file://", case.options, case.size, case.steps, case.step_s)
        seconds: float = client.submit(write_bare, directory, *fields, pure=False).result()
    return case.steps / seconds


def write_bare(
    directory: str, scheme: str, options: dict[str, Any], size: int, steps: int, step_s: float
) -> float:
    """Train and write as the trial does, but one after the other, and return the seconds."""
    fs = fsspec.filesystem(scheme.partition(":")[0], **options)
    data = os.urandom(size)
    begun = time.perf_counter()
    for step in range(steps):
        time.sleep(step_s)
        checkpoint = f"{directory}/checkpoint_{step:06d}"
        fs.makedirs(checkpoint, exist_ok=True)
        with fs.open(f"{checkpoint}/model", "wb") as stream:
            stream.write(data)
        entry = {"model": {"size": len(data), "crc32": zlib.crc32(data)}}
        fs.pipe_file(f"{checkpoint}/.manifest.json", json.dumps(entry).encode())
        if step >= _KEEP:
            for name in (".manifest.json", "model"):
                fs.rm_file(f"{directory}/checkpoint_{step - _KEEP:06d}/{name}")
    return time.perf_counter() - begun


def register_slow_store(cluster: LocalCluster) -> None:
    """Register the slow store on this process and on all workers."""
    importlib.import_module("benchmarks.slow_store")
    with Client(cluster) as client:
        client.run(importlib.import_module, "benchmarks.slow_store")


def _show(label: str, runs: list[Figures]) -> str:
    middle = {name: median(one[name] for one in runs) for name in runs[0]}
    return (
        f"| {label} | {middle['steps_per_s']:,.1f} | {middle['mb_per_s']:,.0f} "
        f"| {middle['bare_steps_per_s']:,.1f} | {middle['bare_mb_per_s']:,.0f} "
        f"| {middle['of_bare']:.2f} | {1e3 * middle['report_s']:,.1f} "
        f"| {1e3 * middle['longest_report_s']:,.1f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each case (3)")
    options = parser.parse_args(arguments)
    about, before = machine(), load()
    measured: dict[str, list[Figures]] = {case.label: [] for case in CASES}
    with local_cluster(workers=1) as cluster:
        warm_up(cluster)
        register_slow_store(cluster)
        for number in range(options.runs):
            for case in CASES:
                print(f"run {number + 1}: {case.label}", file=sys.stderr, flush=True)
                measured[case.label].append(checkpoints(cluster, case))
    print(f"{about['date']}, {about['cores']} cores, revision {about['revision']}, {about['system']}")
    print(f"load {before:.1f} to {load():.1f}, median of {options.runs}\n")
    print("| checkpoint at each step | steps/s | MB/s | bare steps/s | bare MB/s | of bare ", end="")
    print("| a report, ms | the longest, ms |\n|---|---|---|---|---|---|---|---|")
    for label, runs in measured.items():
        print(_show(label, runs))


if __name__ == "__main__":
    main()
