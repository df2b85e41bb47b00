"""The free capacity of a worker as an immutable value.

This module travels by value to schedulers without dasktune, see
:mod:`dasktune.placement.bin_packing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dasktune.placement.devices import EPSILON, PLACES, add_load, pick_gpus


class FreeCapacity(NamedTuple):
    """The free resources of a worker. Workers with equal free capacity are interchangeable.

    Parameters
    ----------
    amounts : tuple of (str, float)
        The free amount of each resource, by name.
    gpu_loads : tuple of float
        The used share of each GPU, from 0 to 1.

    Examples
    --------
    >>> FreeCapacity((("CPU", 2),)).allocate({"CPU": 0.5})
    FreeCapacity(amounts=(('CPU', 1.5),), gpu_loads=())
    """

    amounts: tuple[tuple[str, float], ...]
    gpu_loads: tuple[float, ...] = ()

    def allocate(self, needs: Mapping[str, float]) -> FreeCapacity | None:
        """Return the capacity left after allocating `needs`; None if they do not fit.

        Parameters
        ----------
        needs : mapping
            Amounts by resource name.
        """
        left = dict(self.amounts)
        for kind, amount in needs.items():
            rest = left.get(kind, 0.0) - amount
            if rest < -EPSILON:
                return None
            left[kind] = max(0.0, round(rest, PLACES))
        loads = self.gpu_loads
        if needs.get("GPU"):
            numbers = pick_gpus(loads, needs["GPU"])
            if numbers is None:
                return None
            loads = add_load(loads, numbers, needs["GPU"])
        return FreeCapacity(tuple(left.items()), loads)

    def allocate_all(self, bundles: Iterable[Mapping[str, float]]) -> FreeCapacity | None:
        """Return the capacity left after allocating several bundles; None if they do not fit.

        Parameters
        ----------
        bundles : iterable of mapping
            Amounts by resource name.
        """
        room: FreeCapacity | None = self
        for needs in bundles:
            if room is None:
                return None
            room = room.allocate(needs)
        return room
