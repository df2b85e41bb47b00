"""What is known of a worker."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from dasktune.placement.devices import handed_out

__all__ = ["NOT_ALLOWED", "WorkerCapacity"]

#: Status of a worker that runs, but not for this experiment: the user has kept it out.
NOT_ALLOWED: Final = "not allowed"

#: Functions by value do not cross minor versions, and a worker would crash on one.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: A worker of another status will never take a trial again; an "unchecked" one runs, and nobody has
#: looked yet whether trials can.
_ALIVE: Final = frozenset({"init", "unchecked", "running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """What the scheduler knows of one worker.

    Parameters
    ----------
    address : str
        The worker's address, such as ``"tcp://10.0.0.7:40331"``.
    host : str, default=""
        The machine it runs on.
    name : str, default=""
        Its name, which a restarted worker keeps.
    nthreads : int, default=1
        Threads that it runs tasks in.
    resources : mapping, default={}
        What it declares, by resource name.
    used : mapping, default={}
        What the scheduler counts as taken, leases of other experiments included, our own not.
    devices : tuple of str, default=()
        The GPUs that it owns, by the names that ``CUDA_VISIBLE_DEVICES`` knows.
    status : str, default="running"
        Dask's word for it.
    age : float, default=0.0
        Seconds since its last heartbeat.
    heartbeat : float, default=0.0
        When that came, on the scheduler's clock; only that it changes has a meaning.
    memory : int, default=0
        Bytes that the process used at the last heartbeat.
    memory_limit : int, default=0
        Bytes that it may use; 0 for no limit.
    python : str, default=""
        Python version as ``"3.11"``, from the handshake; empty if unknown.
    nanny : bool, default=False
        Whether a nanny restarts it.
    shares_storage : bool, default=True
        Whether it sees the experiment's files; else its checkpoints go through the driver.

    Examples
    --------
    >>> worker = WorkerCapacity(address="tcp://a:1", nthreads=4, devices=("0", "2"))
    >>> worker.total("CPU"), worker.total("GPU")
    (4, 2)
    """

    address: str
    host: str = ""
    name: str = ""
    nthreads: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    status: str = "running"
    age: float = 0.0
    heartbeat: float = 0.0
    memory: int = 0
    memory_limit: int = 0
    python: str = ""
    nanny: bool = False
    shares_storage: bool = True

    @property
    def is_foreign(self) -> bool:
        """Whether it runs another minor version of Python, and so none of our functions."""
        return self.python not in ("", _PYTHON)

    @property
    def may_serve(self) -> bool:
        """Whether it may take a trial, now or later."""
        return self.status in _ALIVE and not self.is_foreign

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of all resources that it has."""
        declared = [kind for kind, amount in self.resources.items() if amount]
        own = ["GPU"] if self.devices and "GPU" not in self.resources else []
        return tuple(dict.fromkeys(("CPU", "memory", *declared, *own)))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The name of the device behind each GPU that it has; see `handed_out`."""
        return handed_out(self.devices, ceil(self.total("GPU")))

    def total(self, kind: str) -> float:
        """Return how much of a resource the worker has in all.

        What it declares counts. Without a declaration, ``CPU`` is the number of its threads,
        ``GPU`` the number of devices that it owns, and ``memory`` its memory limit in bytes.

        Parameters
        ----------
        kind : str
            Name of the resource.
        """
        if kind in self.resources:
            return self.resources[kind]
        if kind == "CPU":
            return self.nthreads
        if kind == "GPU":
            return len(self.devices)
        if kind == "memory":
            return self.memory_limit or inf
        return 0

    @property
    def offer(self) -> dict[str, float]:
        """What it has of each resource that nobody else has taken.

        Examples
        --------
        >>> WorkerCapacity(address="tcp://a:1", nthreads=4, used={"CPU": 1}, memory_limit=9).offer
        {'CPU': 3, 'memory': 9}
        """
        return {kind: max(0, self.total(kind) - self.used.get(kind, 0)) for kind in self.kinds}

    def declared(self, needs: Mapping[str, float]) -> dict[str, float]:
        """Return that part of `needs` of which the worker's Dask keeps account.

        Parameters
        ----------
        needs : mapping
            Amounts by resource name.

        Examples
        --------
        >>> worker = WorkerCapacity(address="tcp://a:1", resources={"GPU": 1})
        >>> worker.declared({"CPU": 1, "GPU": 0.5})
        {'GPU': 0.5}
        """
        return {kind: amount for kind, amount in needs.items() if amount and kind in self.resources}
