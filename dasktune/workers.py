"""Which workers of the cluster an experiment may use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import ConfigError, check

__all__ = ["WorkerInfo", "allows", "check_workers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What ``RunConfig(workers=...)`` may decide by.

    Parameters
    ----------
    address : str
        The worker's address, such as ``"tcp://10.0.0.7:40331"``.
    name : str, default=""
        Its name, which a restarted worker keeps.
    host : str, default=""
        The machine it runs on.
    nthreads : int, default=1
        Threads that it runs tasks in.
    memory_limit : int, default=0
        Bytes that it may use; 0 for no limit.
    resources : mapping, default={}
        What it declares to Dask, by resource name.

    Examples
    --------
    >>> WorkerInfo(address="tcp://a:1", resources={"GPU": 1}).resources.get("GPU", 0) > 0
    True
    """

    address: str
    name: str = ""
    host: str = ""
    nthreads: int = 1
    memory_limit: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)


#: None allows all workers, a collection those of these addresses or names.
WorkerFilter = Collection[str] | Callable[[WorkerInfo], bool] | None


def check_workers(workers: Any) -> None:
    """Check what a user gave as ``workers``.

    Parameters
    ----------
    workers : object
        What was given.

    Raises
    ------
    ConfigError
        If it is neither None, nor a list of addresses and names, nor a function.

    Examples
    --------
    >>> check_workers(["tcp://10.0.0.7:40331", "gpu-3"])
    >>> check_workers("gpu-3")
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: workers must be None, a list of at least one address or name, \
or a function of a WorkerInfo, got 'gpu-3'
    """
    listed = (
        isinstance(workers, list | tuple | set | frozenset)
        and len(workers) > 0
        and all(isinstance(one, str) and one for one in workers)
    )
    check(
        workers is None or listed or (callable(workers) and not isinstance(workers, type)),
        "workers",
        "None, a list of at least one address or name, or a function of a WorkerInfo",
        workers,
    )


def allows(workers: WorkerFilter, info: WorkerInfo) -> bool:
    """Whether trials may run on a worker.

    Parameters
    ----------
    workers : None, collection of str, or callable
        What passed :func:`check_workers`.
    info : WorkerInfo
        The worker.

    Raises
    ------
    ConfigError
        If the user's function raises.

    Examples
    --------
    >>> allows(["gpu-3"], WorkerInfo(address="tcp://a:1", name="gpu-3"))
    True
    >>> allows(lambda worker: worker.nthreads > 1, WorkerInfo(address="tcp://a:1"))
    False
    """
    if workers is None:
        return True
    if not callable(workers):
        return info.address in workers or info.name in workers
    try:
        return bool(workers(info))
    except Exception as error:
        raise ConfigError(
            f"workers must be a function that tells for every worker whether to use it, got "
            f"{error!r} for {info}"
        ) from error
