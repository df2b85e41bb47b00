"""Where a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Location"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a trial reported its newest result.

    Parameters
    ----------
    hostname : str
        Of the machine.
    node_ip : str
        Its address, as other machines see it.
    pid : int
        The process in which the trial's code ran.
    worker : str
        Address of the Dask worker that it runs on, or ran on last.

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
        """Return where a result came from; None if it does not say, as in a simulation.

        Parameters
        ----------
        result : mapping
            The result, with its auto-filled fields.
        worker : str
            Address of the worker.
        """
        try:
            return cls(
                hostname=result["hostname"],
                node_ip=result["node_ip"],
                pid=result["pid"],
                worker=worker,
            )
        except KeyError:
            return None

    def __str__(self) -> str:
        return f"{self.node_ip}:{self.pid}"
