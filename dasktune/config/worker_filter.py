"""The filter ``RunConfig(workers=...)``: the workers that an experiment may use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import ConfigError, check


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The description of a worker that a function ``RunConfig(workers=...)`` gets.

    Parameters
    ----------
    address : str
        The worker's address, such as ``"tcp://10.0.0.7:40331"``.
    name : str, default=""
        The worker's name, which it keeps when it is restarted.
    host : str, default=""
        The machine of the worker.
    nthreads : int, default=1
        The number of threads that run tasks.
    memory_limit : int, default=0
        The memory limit in bytes; 0 for no limit.
    resources : mapping, default={}
        The resources that the worker declares to Dask, by name.

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


#: None allows all workers, and a collection allows the workers whose address or name it has.
WorkerFilter = Collection[str] | Callable[[WorkerInfo], bool] | None


def check_workers(workers: Any) -> None:
    """Check the type of the setting ``workers``.

    Parameters
    ----------
    workers : object
        The setting.

    Raises
    ------
    ConfigError
        Unless it is None, a list of addresses and names, or a function.

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


def worker_allowed(workers: WorkerFilter, info: WorkerInfo) -> bool:
    """Whether trials may run on a worker.

    Parameters
    ----------
    workers : None, collection of str, or callable
        A setting that passed :func:`check_workers`.
    info : WorkerInfo
        The worker.

    Raises
    ------
    ConfigError
        If the user's function raises.

    Examples
    --------
    >>> worker_allowed(["gpu-3"], WorkerInfo(address="tcp://a:1", name="gpu-3"))
    True
    >>> worker_allowed(lambda worker: worker.nthreads > 1, WorkerInfo(address="tcp://a:1"))
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
            f"workers must be a function that returns for each worker whether to use it, got "
            f"{error!r} for {info}"
        ) from error
