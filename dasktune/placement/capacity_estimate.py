"""An estimate of free capacity for policies."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from dasktune.placement.assign_request import assign_request
from dasktune.placement.bin_packing import WorkerPool
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.trial.resources import PlacementGroupFactory


class CapacityEstimate:
    """The estimated free capacity of all workers.

    Policies use it instead of the executor's ledger, because it depends on journalled data only: a
    replay of the journal gives the same estimate.

    Parameters
    ----------
    workers : mapping
        Resources of each worker, by address and then by resource name.

    Examples
    --------
    >>> estimate = CapacityEstimate({"a": {"CPU": 4}, "b": {"CPU": 4}})
    >>> estimate.allocate("a", {"CPU": 3})
    >>> three = PlacementGroupFactory([{"CPU": 3}])
    >>> estimate.fits(three), estimate.place(three), estimate.fits(three)
    (True, True, False)
    """

    def __init__(self, workers: Mapping[str, Mapping[str, float]]) -> None:
        self._free = {
            address: FreeCapacity(tuple(amounts.items()), (0.0,) * ceil(amounts.get("GPU", 0)))
            for address, amounts in workers.items()
        }

    def allocate(self, address: str, needs: Mapping[str, float]) -> None:
        """Subtract resources from a worker; if they do not fit, the worker counts as full.

        Parameters
        ----------
        address : str
            The worker's address; an unknown one is ignored.
        needs : mapping
            Amounts by resource name.
        """
        room = self._free.get(address)
        if room is not None:
            self._free[address] = room.allocate(needs) or FreeCapacity(())

    def fits(self, request: PlacementGroupFactory) -> bool:
        """Whether a request fits."""
        return self._plan(request) is not None

    def place(self, request: PlacementGroupFactory) -> bool:
        """Allocate a request where it would be placed, and return whether it fits."""
        found = self._plan(request) or {}
        for number, address in found.items():
            self.allocate(address, request.bundles[number])
        return bool(found)

    def _plan(self, request: PlacementGroupFactory) -> dict[int, str] | None:
        pools: dict[FreeCapacity, WorkerPool] = {}
        for number, (address, room) in enumerate(self._free.items()):
            pools.setdefault(room, WorkerPool(room)).members.append((number, address))
        return assign_request(request, pools.values())
