"""Large objects that are on the cluster already."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["RemoteObject"]


class RemoteObject(ABC):
    """Stands on the driver for an object that a worker makes of what lies on the cluster.

    Bound by `with_parameters` it is the object itself that trials get. It is made once, and its
    frames go from worker to worker like those of any other large object.
    """

    #: Bytes that the object will have.
    size: int = 0

    #: Seconds that it may take besides, where what it is made of was lost and must be made again.
    patience: float = 0.0

    @abstractmethod
    def begin(self, client: Any, key: str, address: str) -> Any:
        """Have a worker make the object, and return the future of its frames.

        Parameters
        ----------
        client : distributed.Client
            Whose loop this does not run on.
        key : str
            How the frames are called in Dask.
        address : str
            The worker. Another one may make it again if it is lost.
        """
