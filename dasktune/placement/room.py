"""What is free on a worker, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dasktune.placement.devices import EPSILON, loaded, picked

__all__ = ["PLACES", "Room"]

#: Decimal places that amounts are rounded to, so that workers with equal room are seen to be equal.
PLACES: Final = 12


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on a worker. Workers with equal room are as good as each other.

    Parameters
    ----------
    free : tuple of (str, float)
        Each kind with what is left of it.
    loads : tuple of float
        How much of each GPU is taken, from 0 to 1.

    Examples
    --------
    >>> Room((("CPU", 2),)).take({"CPU": 0.5})
    Room(free=(('CPU', 1.5),), loads=())
    """

    free: tuple[tuple[str, float], ...]
    loads: tuple[float, ...] = ()

    def take(self, needs: Mapping[str, float]) -> Room | None:
        """Return what is left when `needs` are taken; None if there is not so much.

        Parameters
        ----------
        needs : mapping
            Amounts by resource name.
        """
        left = dict(self.free)
        for kind, amount in needs.items():
            rest = left.get(kind, 0.0) - amount
            if rest < -EPSILON:
                return None
            left[kind] = max(0.0, round(rest, PLACES))
        loads = self.loads
        if needs.get("GPU"):
            numbers = picked(loads, needs["GPU"])
            if numbers is None:
                return None
            loads = loaded(loads, numbers, needs["GPU"])
        return Room(tuple(left.items()), loads)

    def take_all(self, bundles: Iterable[Mapping[str, float]]) -> Room | None:
        """Return what is left when all of several bundles are taken; None if they do not fit.

        Parameters
        ----------
        bundles : iterable of mapping
            Amounts by resource name.
        """
        room: Room | None = self
        for needs in bundles:
            if room is None:
                return None
            room = room.take(needs)
        return room
