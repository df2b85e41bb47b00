"""The limits of the parts that dasktune builds on: plain Dask, and plain file writes."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib

import fsspec
from distributed import Client, LocalCluster

from benchmarks._measure import Figures, Size
from benchmarks.workloads import CHECKPOINT_BYTES

__all__ = ["limits", "write_checkpoints"]

_TASKS = 1_000
_CALLS = 500


class EchoActor:
    """An actor that returns its argument."""

    async def call(self, argument: bytes) -> bytes:
        return argument


def limits(cluster: LocalCluster, size: Size) -> Figures:
    """Measure no-op tasks, actor calls, and checkpoints of `size` written by plain fsspec."""
    with Client(cluster) as client:
        return {
            "tasks_per_s": _TASKS / _seconds_of_tasks(client),
            "actor_call_ms": 1e3 * client.sync(_seconds_of_calls, client) / _CALLS,
            "checkpoints_per_s": size.trials * size.steps / _seconds_of_writes(client, size),
        }


def _seconds_of_tasks(client: Client) -> float:
    begun = time.perf_counter()
    client.gather(client.map(_nothing, range(_TASKS), pure=False))
    return time.perf_counter() - begun


async def _seconds_of_calls(client: Client) -> float:
    actor = await client.submit(EchoActor, actor=True, pure=False)
    await actor.call(b"")
    begun = time.perf_counter()
    for _ in range(_CALLS):
        await actor.call(b"")
    return time.perf_counter() - begun


def _seconds_of_writes(client: Client, size: Size) -> float:
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        begun = time.perf_counter()
        client.gather(
            [
                client.submit(
                    write_checkpoints,
                    f"{directory}/{trial}",
                    size.steps,
                    workers=[workers[trial % len(workers)]],
                    pure=False,
                )
                for trial in range(size.trials)
            ]
        )
        return time.perf_counter() - begun


def _nothing(number: int) -> int:
    return number


def write_checkpoints(directory: str, count: int, keep: int = 2) -> None:
    """Write checkpoints with a checksum and a manifest through fsspec, and keep the last few."""
    fs = fsspec.filesystem("file")
    data = os.urandom(CHECKPOINT_BYTES)
    for step in range(count):
        checkpoint = f"{directory}/checkpoint_{step:06d}"
        fs.makedirs(checkpoint)
        with fs.open(f"{checkpoint}/model", "wb") as stream:
            stream.write(data)
        entry = {"model": {"size": len(data), "crc32": zlib.crc32(data)}}
        with fs.open(f"{checkpoint}/.manifest.json", "wb") as stream:
            stream.write(json.dumps(entry).encode())
        if step >= keep:
            fs.rm(f"{directory}/checkpoint_{step - keep:06d}", recursive=True)
