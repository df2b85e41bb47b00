"""Checks that all workers share a storage, because a submitted driver may run on any of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from dasktune.cluster.connection.batched_calls import run_on_worker
from dasktune.cluster.connection.daemon_thread import run_in_daemon_thread
from dasktune.cluster.membership.worker_list import list_workers
from dasktune.errors import ConfigError, check
from dasktune.placement import WorkerCapacity
from dasktune.storage.experiment.bundled_files import ExpectedDirectory
from dasktune.storage.fs.probe import remove_if_empty, scratch_name
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)

#: Number of workers that are checked at the same time.
_AT_ONCE: Final = 16

#: A worker's answer if it cannot read the file.
_UNSEEN: Final = "unseen"


def may_be_private(storage: Storage) -> bool:
    """Whether other processes may see a different directory at the storage's path."""
    return storage.is_local or storage.is_process_private


async def check_shared(client: Any, storage: Callable[[], Storage], *, timeout_s: float = 60.0) -> str:
    """Check that all workers share a storage, for a driver that may run on any of them.

    Await it on the client's loop. Workers that do not answer are skipped.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    storage : callable
        Returns the experiment's directory; called on the workers, too.
    timeout_s : float, default=60.0
        Seconds that each call to a worker may take.

    Returns
    -------
    str
        Name of an empty file that is left in the storage. A driver that does not find this file
        runs on a machine with another storage. The name is empty if there is no worker, or the
        storage is always shared.

    Raises
    ------
    ConfigError
        If a worker cannot read what another worker writes, or no worker can write.
    """
    if not may_be_private(storage()):
        return ""
    workers = [one for one in (await list_workers(client)).values() if one.status == "running"]
    mark = scratch_name("submitted")
    gate = asyncio.Semaphore(_AT_ONCE)

    async def touch(worker: WorkerCapacity, action: str) -> Any:
        async with gate:
            return await run_on_worker(client, worker, timeout_s, _touch, storage, mark, action)

    trouble: Any = None
    for writer in workers:
        if (trouble := await touch(writer, "write")) is None:
            break
        logger.info("%s cannot write to the storage: %r", writer.address, trouble)
    else:
        hint = f"The last worker answered {trouble!r}."
        check(not workers, "storage_path", "writable on some worker", str(storage()), hint)
        return ""
    answers = await asyncio.gather(*(touch(worker, "look") for worker in workers))
    blind = [one for one, answer in zip(workers, answers, strict=True) if answer == _UNSEEN]
    if blind:
        await touch(writer, "remove")
        raise ConfigError(
            f"storage_path must be shared by all workers with submit(), got {storage()}, where "
            f"{blind[0].address} ({blind[0].host}) and {len(blind) - 1} more do not see what "
            f"{writer.address} ({writer.host}) writes. The driver may run on any of them: use a "
            "shared disk, or an object store such as s3://."
        )
    return mark


async def check_visible(client: Any, seen: ExpectedDirectory, *, timeout_s: float = 60.0) -> None:
    """Check that all workers see a directory as the client does; see :func:`check_shared`.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    seen : ExpectedDirectory
        The directory.
    timeout_s : float, default=60.0
        Seconds that each call to a worker may take.

    Raises
    ------
    ConfigError
        If a worker cannot read the directory.
    """
    workers = [one for one in (await list_workers(client)).values() if one.status == "running"]
    answers = await asyncio.gather(
        *(run_on_worker(client, worker, timeout_s, _look, seen) for worker in workers)
    )
    blind = [one for one, answer in zip(workers, answers, strict=True) if answer is False]
    if blind:
        raise ConfigError(
            f"restore must be seen by all workers, or be small enough to travel with submit(), got "
            f"{seen.path!r} of {seen.mebibytes} MiB, which {blind[0].address} ({blind[0].host}) "
            f"and {len(blind) - 1} more do not see as it is here. Put it on a shared disk, for "
            "example beside storage_path, or in an object store such as s3://."
        )


async def _look(seen: ExpectedDirectory) -> bool:
    found: bool = await run_in_daemon_thread(seen)
    return found


async def _touch(storage: Callable[[], Storage], mark: str, action: str) -> str | None:
    """Write, look for or remove an empty file on a worker, in a thread."""

    def touch() -> str | None:
        place = storage()
        if action == "write":
            place.write_bytes(mark, b"")
        elif action == "remove":
            place.remove(mark)
            remove_if_empty(place)
        elif not place.exists(mark):
            return _UNSEEN
        return None

    found: str | None = await run_in_daemon_thread(touch)
    return found
