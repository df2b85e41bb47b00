"""The capacity of a worker, as the Dask scheduler reports it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from dasktune.placement.devices import gpu_names

#: Status of a worker that runs but is excluded by the experiment's `workers` filter.
NOT_ALLOWED: Final = "not allowed"

#: Functions pickled by value need the same minor version; another one may crash the worker.
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

#: Statuses of workers that may run trials, now or later. An "unchecked" worker runs, but its
#: ability to run trials has not been checked yet.
_ALIVE: Final = frozenset({"init", "unchecked", "running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """The resources and the status of one worker.

    Parameters
    ----------
    address : str
        The worker's address, such as ``"tcp://10.0.0.7:40331"``.
    host : str, default=""
        Name or address of the worker's host.
    name : str, default=""
        The worker's name, which is the same after a restart.
    nthreads : int, default=1
        Number of threads that run tasks.
    resources : mapping, default={}
        Declared amounts by resource name.
    used : mapping, default={}
        Amounts in use according to the Dask scheduler. Leases of other experiments are included,
        those of this experiment are not.
    withheld : mapping, default={}
        Free amounts that are reserved for other experiments at the moment.
    overtakable : mapping, default={}
        Amounts in `used` that a trial may use nevertheless: tasks of other programs have booked
        them, of which some wait on the worker. The trial's lease overtakes these tasks.
    gpu_loads : tuple of float, default=()
        The part of each GPU, from 0 to 1, that other experiments hold or that is reserved for them;
        empty if that is not known.
    devices : tuple of str, default=()
        The GPUs assigned to it, by their names in ``CUDA_VISIBLE_DEVICES``.
    status : str, default="running"
        Dask's worker status, or one of this package.
    age : float, default=0.0
        Seconds since its last heartbeat; 0 may also stand for a short time.
    heartbeat : float, default=0.0
        Time of the last heartbeat on the scheduler's clock, to detect a new one.
    memory : int, default=0
        Memory of the process at the last heartbeat, in bytes.
    memory_limit : int, default=0
        Memory limit in bytes; 0 for no limit.
    python : str, default=""
        Python version, such as ``"3.11"``, from the handshake; empty if unknown.
    nanny : bool, default=False
        Whether a nanny restarts it.
    shares_storage : bool, default=True
        Whether it can access the experiment's storage. If not, checkpoints go through the driver.

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
    withheld: Mapping[str, float] = field(default_factory=dict)
    overtakable: Mapping[str, float] = field(default_factory=dict)
    gpu_loads: tuple[float, ...] = ()
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
    def python_differs(self) -> bool:
        """Whether the worker has another minor version of Python and cannot unpickle functions."""
        return self.python not in ("", _PYTHON)

    @property
    def can_run_trials(self) -> bool:
        """Whether the worker can run trials, now or later."""
        return self.status in _ALIVE and not self.python_differs

    @property
    def resource_names(self) -> tuple[str, ...]:
        """The names of all resources of the worker."""
        declared = [kind for kind, amount in self.resources.items() if amount]
        own = ["GPU"] if self.devices and "GPU" not in self.resources else []
        return tuple(dict.fromkeys(("CPU", "memory", *declared, *own)))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The device of each GPU of the worker; see :func:`gpu_names`."""
        return gpu_names(self.devices, ceil(self.total("GPU")))

    def total(self, kind: str) -> float:
        """Return the total amount of a resource.

        This is the declared amount. Without a declaration, ``CPU`` is the number of threads,
        ``GPU`` the number of assigned devices, and ``memory`` the memory limit in bytes.

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
    def available(self) -> dict[str, float]:
        """The amount of each resource that other experiments do not use.

        What is only withheld is included, because it changes often: see :meth:`for_trials`.

        Examples
        --------
        >>> worker = WorkerCapacity(address="a", nthreads=4, used={"CPU": 1}, memory_limit=9)
        >>> worker.available
        {'CPU': 3, 'memory': 9}
        """
        return {kind: max(0, self.total(kind) - self.used.get(kind, 0)) for kind in self.resource_names}

    def for_trials(self, kind: str) -> float:
        """Return the amount of a resource that trials may use now.

        Parameters
        ----------
        kind : str
            Name of the resource.

        Examples
        --------
        >>> worker = WorkerCapacity(address="a", nthreads=4, used={"CPU": 1}, withheld={"CPU": 1})
        >>> worker.for_trials("CPU")
        2
        """
        used = self.used.get(kind, 0) - self.overtakable.get(kind, 0)
        return self.total(kind) - used - self.withheld.get(kind, 0)

    def declared(self, needs: Mapping[str, float]) -> dict[str, float]:
        """Return the part of `needs` that the worker declares to Dask.

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
