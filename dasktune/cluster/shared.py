"""Whether all workers see the same storage: for a driver that may be on any of them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any, Final

from dasktune.cluster.ask import ask, in_thread
from dasktune.cluster.workers import read_workers
from dasktune.errors import ConfigError, check
from dasktune.placement import WorkerCapacity
from dasktune.storage.location import Storage
from dasktune.storage.luggage import Seen
from dasktune.storage.probe import remove_if_empty

__all__ = ["check_seen", "check_shared", "may_differ"]

logger = logging.getLogger(__name__)

#: Workers that are looked at side by side.
_AT_ONCE: Final = 16

#: Says of a worker that it sees another storage.
_UNSEEN: Final = "unseen"


def may_differ(storage: Storage) -> bool:
    """Whether another process may see something else there."""
    return storage.is_local or storage.is_process_private


async def check_shared(
    client: Any, storage: Callable[[], Storage], *, timeout_s: float = 60.0
) -> str:
    """Check that all workers see the same storage, for a driver that may be on any of them.

    To be awaited on the client's loop. Workers that do not answer are left out.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    storage : callable
        Returns the experiment's directory as a worker sees it.
    timeout_s : float, default=60.0
        Seconds for each call to a worker.

    Returns
    -------
    str
        Name of an empty file that was left there; where it is missing the driver is in the wrong
        place. Empty if there is no worker, or nothing can differ.

    Raises
    ------
    ConfigError
        If one of them does not see what another one writes, or none can write.
    """
    if not may_differ(storage()):
        return ""
    workers = [one for one in (await read_workers(client)).values() if one.status == "running"]
    mark = f".submitted-{uuid.uuid4().hex}"
    gate = asyncio.Semaphore(_AT_ONCE)

    async def tell(worker: WorkerCapacity, word: str) -> Any:
        async with gate:
            return await ask(client, worker, timeout_s, _touch, storage, mark, word)

    trouble: Any = None
    for writer in workers:
        if (trouble := await tell(writer, "write")) is None:
            break
        logger.info("%s cannot write to the storage: %r", writer.address, trouble)
    else:
        hint = f"The last one said {trouble!r}."
        check(not workers, "storage_path", "writable on some worker", str(storage()), hint)
        return ""
    answers = await asyncio.gather(*(tell(worker, "look") for worker in workers))
    blind = [one for one, answer in zip(workers, answers, strict=True) if answer == _UNSEEN]
    if blind:
        await tell(writer, "remove")
        raise ConfigError(
            f"storage_path must be shared by all workers with submit(), got {storage()}, where "
            f"{blind[0].address} ({blind[0].host}) and {len(blind) - 1} more do not see what "
            f"{writer.address} ({writer.host}) writes. The driver lives on any of them: use a "
            "shared disk, or an object store such as s3://."
        )
    return mark


async def check_seen(client: Any, seen: Seen, *, timeout_s: float = 60.0) -> None:
    """Check that all workers see a directory as the client does; see :func:`check_shared`.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    seen : Seen
        The directory.
    timeout_s : float, default=60.0
        Seconds for each call to a worker.

    Raises
    ------
    ConfigError
        If one of them does not.
    """
    workers = [one for one in (await read_workers(client)).values() if one.status == "running"]
    answers = await asyncio.gather(
        *(ask(client, worker, timeout_s, _look, seen) for worker in workers)
    )
    blind = [one for one, answer in zip(workers, answers, strict=True) if answer is False]
    if blind:
        raise ConfigError(
            f"restore must be seen by all workers, or be small enough to travel with submit(), got "
            f"{seen.path!r} of {seen.mebibytes} MiB, which {blind[0].address} ({blind[0].host}) "
            f"and {len(blind) - 1} more do not see as it is here. Put it on a shared disk, for "
            "example beside storage_path, or in an object store such as s3://."
        )


async def _look(seen: Seen) -> bool:
    found: bool = await in_thread(seen)
    return found


async def _touch(storage: Callable[[], Storage], mark: str, word: str) -> str | None:
    """Write, look for or remove an empty file on a worker, beside its event loop."""

    def touch() -> str | None:
        place = storage()
        if word == "write":
            place.write_bytes(mark, b"")
        elif word == "remove":
            place.remove(mark)
            remove_if_empty(place)
        elif not place.exists(mark):
            return _UNSEEN
        return None

    found: str | None = await in_thread(touch)
    return found
