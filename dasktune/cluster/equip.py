"""What a worker is given before it takes trials: GPUs of its own, and a declaration of what it has.

A GPU belongs to one worker of its host, whoever asks, so the scheduler keeps the list: it is one
process, it sees all workers, and what it knows of a worker ends with the worker. The declaration
lets Dask itself keep account of CPUs and GPUs, for all clients. It stays when the experiment ends,
because by then others may rely on it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any, Final

import cloudpickle

from dasktune.placement import WorkerCapacity, devices
from dasktune.placement.devices import dealt, visible_in

__all__ = ["GPUS", "equip", "parse_listing", "visible_devices"]

#: Where the scheduler keeps what a worker sees and owns, in what it knows of the worker.
GPUS: Final = "dasktune-gpus"

#: Seconds that a listing of GPUs may take; a driver that is not loaded takes a while.
_LISTING_DEADLINE: Final = 30.0


async def equip(client: Any, worker: WorkerCapacity, *, declare: bool, timeout_s: float) -> None:
    """Find out a worker's GPUs, and declare what it has if it has not done so itself.

    To be awaited on the client's loop. A second time, by whichever client, changes nothing.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    worker : WorkerCapacity
        The worker, which has dasktune.
    declare : bool
        Whether to declare anything.
    timeout_s : float
        Seconds for each call.

    Raises
    ------
    Exception
        Whatever the worker or the connection has to say.
    """

    async def ask(function: Callable[..., Any], *args: Any) -> Any:
        answers = client.run(function, *args, workers=[worker.address])
        return (await asyncio.wait_for(answers, timeout_s))[worker.address]

    known = list(worker.resources)
    visible = await ask(_look, known if declare else None)
    gpus: list[str] = []
    if visible:
        # By value: the scheduler may not have dasktune.
        cloudpickle.register_pickle_by_value(devices)
        deal = client.run_on_scheduler(_deal(), worker.address, visible)
        gpus = await asyncio.wait_for(deal, timeout_s)
        if declare:
            await ask(_declare, known, len(gpus))
    if declare and not {"CPU", *(["GPU"] if gpus else [])} <= set(known):
        recount = client.run_on_scheduler(_recount(), worker.address)
        await asyncio.wait_for(recount, timeout_s)


# On the worker


async def _look(known: list[str] | None, dask_worker: Any) -> list[str]:
    """Return the GPUs that a worker sees; where there are none, all can be declared at once."""
    found = await asyncio.to_thread(visible_devices)
    if known is not None and not found:
        await _declare(known, 0, dask_worker)
    return list(found)


async def _declare(known: list[str], gpus: int, dask_worker: Any) -> None:
    """Declare what the scheduler does not know yet.

    The worker itself may know it already: another experiment is at it at the same time, or the
    scheduler did not hear of it the last time. To declare as much as before changes nothing there.
    """
    has: dict[str, float] = {"CPU": dask_worker.state.nthreads}
    if gpus:
        has["GPU"] = gpus
    total = dask_worker.state.total_resources
    missing = {kind: total.get(kind, amount) for kind, amount in has.items() if kind not in known}
    if missing:
        await dask_worker.set_resources(**missing)


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process may use, in order, by the names that CUDA knows.

    ``CUDA_VISIBLE_DEVICES`` counts; else what nvidia-smi lists, else NVML; else there are none.
    """
    named = visible_in(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if named is not None:
        return named
    if shutil.which("nvidia-smi"):
        with suppress(OSError, subprocess.SubprocessError):
            return parse_listing(
                subprocess.run(
                    ["nvidia-smi", "-L"],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=_LISTING_DEADLINE,
                ).stdout
            )
    return _counted_by_nvml()


def parse_listing(text: str) -> tuple[str, ...]:
    r"""Return the devices that ``nvidia-smi -L`` lists; a GPU in MIG mode counts by its parts.

    Examples
    --------
    >>> parse_listing("GPU 0: NVIDIA H200 (UUID: GPU-1c)\nGPU 1: NVIDIA H200 (UUID: GPU-2d)\n")
    ('0', '1')
    """
    names: list[str] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            names.append(whole[1])
        elif part := re.match(r"\s+MIG .*\(UUID: (\S+)\)", line):
            if names and names[-1].isdecimal():
                del names[-1]
            names.append(part[1])
    return tuple(names)


def _counted_by_nvml() -> tuple[str, ...]:
    with suppress(Exception):  # not installed, no driver, not allowed
        # Not a requirement: there are few GPUs where it is missing, and mostly nvidia-smi is there.
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        pynvml.nvmlInit()
        return tuple(str(number) for number in range(pynvml.nvmlDeviceGetCount()))
    return ()


# On the scheduler, nested so that they travel by value


def _deal(key: str = GPUS, deal: Callable[..., tuple[str, ...]] = dealt) -> Callable[..., Any]:
    def on_scheduler(address: str, visible: list[str], dask_scheduler: Any = None) -> list[str]:
        worker = dask_scheduler.workers[address]
        if key not in worker.extra:
            there = [one for one in dask_scheduler.workers.values() if one.host == worker.host]
            known = [one.extra[key] for one in there if key in one.extra]
            gpus = worker.resources.get("GPU")
            owned = deal(
                visible,
                taken={name for one in known for name in one["owned"]},
                others=[one["visible"] for one in known],
                waiting=len(there) - len(known),
                wanted=None if gpus is None else ceil(gpus),
            )
            worker.extra[key] = {"visible": visible, "owned": list(owned)}
        found: list[str] = worker.extra[key]["owned"]
        return found

    return on_scheduler


def _recount() -> Callable[..., None]:
    def on_scheduler(address: str, dask_scheduler: Any = None) -> None:
        """Count what is used once more: Dask forgets it when something is declared."""
        worker = dask_scheduler.workers[address]
        used = dict.fromkeys(worker.resources, 0.0)
        for task in worker.processing:
            for kind, amount in (task.resource_restrictions or {}).items():
                used[kind] = used.get(kind, 0.0) + amount
        worker.used_resources = used

    return on_scheduler
