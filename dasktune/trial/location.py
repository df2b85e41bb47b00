"""The process in which a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The machine, process and worker from which a trial reported its newest result.

    Parameters
    ----------
    hostname : str
        Name of the machine.
    node_ip : str
        Address of the machine in the network.
    pid : int
        Process of the trial's code.
    worker : str
        Address of the trial's Dask worker, or of its last one.

    Examples
    --------
    >>> row = {"hostname": "node-1", "node_ip": "10.0.0.1", "pid": 42, "loss": 0.5}
    >>> print(Location.of(row, "tcp://10.0.0.1:1234"))
    10.0.0.1:42
    """

    hostname: str
    node_ip: str
    pid: int
    worker: str

    @classmethod
    def of(cls, result: Mapping[str, Any], worker: str) -> Location | None:
        """Return the location of a result; None if its fields lack it, as in a simulation.

        Parameters
        ----------
        result : mapping
            The result, with its auto-filled fields.
        worker : str
            Address of the worker.
        """
        try:
            return cls(
                hostname=result["hostname"], node_ip=result["node_ip"], pid=result["pid"], worker=worker
            )
        except KeyError:
            return None

    def __str__(self) -> str:
        return f"{self.node_ip}:{self.pid}"
