"""Assigns GPUs to workers, and declares CPU and GPU resources to Dask.

A GPU belongs to one worker of its host, for all clients. So the GPUs are assigned on the scheduler:
it is one process and sees all workers, and its record of a worker ends with the worker. With the
declared resources Dask accounts for the CPUs and GPUs that all clients use. The declaration stays
when the experiment ends, because other clients may rely on it by then.

Several experiments may do this for a worker at the same time. The scheduler runs each function
without interruption, so the first one assigns the GPUs and the others read the assignment.
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
from distributed.utils import wait_for

from dasktune.cluster.connection.batched_calls import BatchedCalls
from dasktune.placement import WorkerCapacity, devices
from dasktune.placement.devices import assign_devices, parse_visible_devices

#: The key of a worker's visible and assigned GPUs in the scheduler's record of the worker.
GPUS: Final = "dasktune-gpus"

#: Seconds that listing the GPUs may take. It is slow if the GPU's driver must be loaded first.
_LISTING_DEADLINE: Final = 30.0


async def declare_resources(
    client: Any,
    calls: BatchedCalls,
    worker: WorkerCapacity,
    visible: list[str],
    *,
    declare: bool,
    timeout_s: float,
    recount: bool = False,
) -> None:
    """Assign GPUs to a worker, and declare its resources if it has not done so itself.

    Await it on the client's loop, after :func:`list_gpus` has run on the worker. Repeating it, from
    any client, changes nothing.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    calls : BatchedCalls
        Makes the calls of that client that are the same for many workers.
    worker : WorkerCapacity
        The worker, which can import dasktune.
    visible : list of str
        What `list_gpus` has returned there.
    declare : bool
        Whether to declare CPUs and GPUs to Dask.
    timeout_s : float
        Seconds that each call may take.
    recount : bool, default=False
        Whether an earlier call may have declared something that was not recounted: it failed, but
        the worker may have received its order.

    Raises
    ------
    Exception
        Any exception of the worker or the connection.
    """
    known = list(worker.resources)
    gpus: list[str] = []
    if visible:
        # By value, because the scheduler may not have dasktune.
        cloudpickle.register_pickle_by_value(devices)
        deal = client.run_on_scheduler(_assign_gpus(), worker.address, visible)
        gpus = await wait_for(deal, timeout_s)
    if declare and not {"CPU", *(["GPU"] if gpus else [])} <= set(known):
        # Dask forgets what tasks use when a worker declares something, so nothing comes in between.
        work = calls.run_on_worker(worker.address, _declare, known, len(gpus))
        await wait_for(work, timeout_s)
        recount = True
    if declare and recount:
        await wait_for(calls.tell_scheduler(_RECOUNT, worker.address), timeout_s)


# Functions that run on the worker


async def list_gpus() -> list[str]:
    """Return the GPUs that are visible to a worker."""
    found = await asyncio.to_thread(visible_devices)
    return list(found)


async def _declare(known: list[str], gpus: int, dask_worker: Any) -> None:
    """Declare the resources that the scheduler does not have.

    The worker may have declared them already, if another experiment does so at the same time or the
    last declaration did not reach the scheduler. Declaring the same amount again changes nothing.
    """
    has: dict[str, float] = {"CPU": dask_worker.state.nthreads}
    if gpus:
        has["GPU"] = gpus
    total = dask_worker.state.total_resources
    missing = {kind: total.get(kind, amount) for kind, amount in has.items() if kind not in known}
    if missing:
        await dask_worker.set_resources(**missing)


def visible_devices() -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use, in CUDA's order.

    They come from ``CUDA_VISIBLE_DEVICES``, or else from nvidia-smi, or else from NVML.
    """
    named = parse_visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
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
    r"""Return the GPUs that ``nvidia-smi -L`` lists; for a GPU in MIG mode, its MIG devices.

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
        # pynvml is not a requirement, because nvidia-smi is nearly always there.
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        pynvml.nvmlInit()
        return tuple(str(number) for number in range(pynvml.nvmlDeviceGetCount()))
    return ()


# Functions that run on the scheduler; nested, to pickle by value


def _assign_gpus(
    key: str = GPUS, deal: Callable[..., tuple[str, ...]] = assign_devices
) -> Callable[..., Any]:
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


def _recount() -> Callable[[list[str], Any], None]:
    def on_scheduler(addresses: list[str], dask_scheduler: Any = None) -> None:
        """Recount the used resources of workers, which Dask resets when a worker declares some."""
        for worker in [dask_scheduler.workers[one] for one in addresses if one in dask_scheduler.workers]:
            used = dict.fromkeys(worker.resources, 0.0)
            for task in worker.processing:
                for kind, amount in (task.resource_restrictions or {}).items():
                    used[kind] = used.get(kind, 0.0) + amount
            worker.used_resources = used

    return on_scheduler


#: One object, so that the calls for many workers are combined.
_RECOUNT: Final = _recount()
