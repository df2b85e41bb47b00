"""One worker in the ledger: what we hold there, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf

from dasktune.placement.arrange import Pool
from dasktune.placement.devices import loaded, picked
from dasktune.placement.room import PLACES, Room
from dasktune.placement.worker import WorkerCapacity

__all__ = ["Account", "Holding", "empty_room"]


class Holding:
    """What we hold on a worker; it outlives the worker's being out of sight for a while."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        #: How much of each GPU we hold, by its position.
        self.loads: tuple[float, ...] = ()
        #: What each placement holds, by its number: amounts and GPUs.
        self._seats: dict[int, list[tuple[dict[str, float], tuple[int, ...]]]] = {}

    @property
    def numbers(self) -> Set[int]:
        """The placements that hold something here."""
        return self._seats.keys()

    def add(self, number: int, needs: Mapping[str, float], gpus: tuple[int, ...]) -> None:
        """Take `needs` for a placement, and these GPUs."""
        self._seats.setdefault(number, []).append((dict(needs), gpus))
        self._book(needs, gpus, 1)

    def drop(self, number: int) -> bool:
        """Give back what a placement holds, and say whether it held anything."""
        seats = self._seats.pop(number, [])
        for needs, gpus in seats:
            self._book(needs, gpus, -1)
        if not self._seats:
            # Whatever rounding has left.
            self.amounts, self.loads = {}, ()
        return bool(seats)

    def _book(self, needs: Mapping[str, float], gpus: tuple[int, ...], sign: int) -> None:
        for kind, amount in needs.items():
            self.amounts[kind] = round(self.amounts.get(kind, 0) + sign * amount, PLACES)
        if gpus:
            self.stretch(max(gpus) + 1)
            self.loads = loaded(self.loads, gpus, sign * needs["GPU"])

    def stretch(self, count: int) -> None:
        """Keep account of at least so many GPUs."""
        self.loads += (0.0,) * (count - len(self.loads))


class Account:
    """A worker, and what is left on it.

    Parameters
    ----------
    number : int
        Counts the arrivals; of equal workers the first goes first.
    worker : WorkerCapacity
        What the scheduler knows of it.
    holding : Holding
        What we hold there.
    """

    __slots__ = (
        "_totals",
        "fill",
        "gpus",
        "holding",
        "number",
        "pool",
        "room",
        "scarce",
        "worker",
    )

    def __init__(self, number: int, worker: WorkerCapacity, holding: Holding) -> None:
        self.number = number
        self.holding = holding
        #: The pool that it stands in; None while it takes no trials.
        self.pool: Pool | None = None
        self.show(worker)

    def show(self, worker: WorkerCapacity) -> None:
        """Take over what the scheduler sees now."""
        self.worker = worker
        #: The name of the device behind each GPU.
        self.gpus = worker.gpus
        #: What it has that others may lack.
        self.scarce = tuple(kind for kind in worker.kinds if kind not in ("CPU", "memory"))
        self._totals = [
            (kind, worker.total(kind), worker.used.get(kind, 0)) for kind in worker.kinds
        ]
        self.settle()

    def settle(self) -> None:
        """Work out anew what is left."""
        held = self.holding
        held.stretch(len(self.gpus))
        free = []
        #: Share of its scarcest resource that is taken, from 0 to 1.
        self.fill = 0.0
        for kind, total, others in self._totals:
            left = max(0.0, round(total - held.amounts.get(kind, 0) - others, PLACES))
            free.append((kind, left))
            if 0 < total < inf:
                self.fill = max(self.fill, 1 - left / total)
        self.room = Room(tuple(free), held.loads[: len(self.gpus)])

    def take(self, number: int, needs: Mapping[str, float]) -> tuple[str, ...] | None:
        """Take `needs`, which there must be room for, and return the devices; None if it asks none.

        Parameters
        ----------
        number : int
            Of the placement.
        needs : mapping
            Amounts by resource name.
        """
        amount = needs.get("GPU", 0)
        gpus = (picked(self.room.loads, amount) or ()) if amount else ()
        self.holding.add(number, needs, gpus)
        self.settle()
        return tuple(self.gpus[gpu] for gpu in gpus) if amount else None


def empty_room(worker: WorkerCapacity) -> Room:
    """Return the room that a worker would have if nobody used it."""
    totals = tuple((kind, worker.total(kind)) for kind in worker.kinds)
    return Room(totals, (0.0,) * len(worker.gpus))
