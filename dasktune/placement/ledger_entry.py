"""The ledger's entry for one worker: resources allocated there, and free capacity."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf

from dasktune.placement.bin_packing import WorkerPool
from dasktune.placement.devices import EPSILON, PLACES, add_load, pick_gpus
from dasktune.placement.free_capacity import FreeCapacity
from dasktune.placement.placement import Claim
from dasktune.placement.worker import WorkerCapacity


class Allocations:
    """Resources allocated on one worker; they are kept while the worker is temporarily missing."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        #: Allocated share of each GPU, by position.
        self.gpu_loads: tuple[float, ...] = ()
        #: ``{placement number: its allocations}``, each with amounts and positions of GPUs.
        self._by_placement: dict[int, list[tuple[dict[str, float], tuple[int, ...]]]] = {}

    @property
    def placements(self) -> Set[int]:
        """The numbers of the placements with allocations here."""
        return self._by_placement.keys()

    def add(self, number: int, needs: Mapping[str, float], gpus: tuple[int, ...]) -> None:
        """Allocate `needs` and GPUs to a placement."""
        self._by_placement.setdefault(number, []).append((dict(needs), gpus))
        self._apply(needs, gpus, 1)

    def of(self, number: int) -> list[tuple[dict[str, float], tuple[int, ...]]]:
        """Return the allocations of a placement: the amounts, and the positions of GPUs."""
        return list(self._by_placement.get(number, ()))

    def release(self, number: int) -> bool:
        """Release the allocations of a placement, and return whether it had any."""
        seats = self._by_placement.pop(number, [])
        for needs, gpus in seats:
            self._apply(needs, gpus, -1)
        if not self._by_placement:
            # Remove rounding errors of the sums.
            self.amounts, self.gpu_loads = {}, ()
        return bool(seats)

    def _apply(self, needs: Mapping[str, float], gpus: tuple[int, ...], sign: int) -> None:
        for kind, amount in needs.items():
            self.amounts[kind] = round(self.amounts.get(kind, 0) + sign * amount, PLACES)
        if gpus:
            self.ensure_gpu_count(max(gpus) + 1)
            self.gpu_loads = add_load(self.gpu_loads, gpus, sign * needs["GPU"])

    def ensure_gpu_count(self, count: int) -> None:
        """Extend the loads to at least `count` GPUs."""
        self.gpu_loads += (0.0,) * (count - len(self.gpu_loads))


class LedgerEntry:
    """A worker with its allocations and its free capacity.

    Parameters
    ----------
    number : int
        Arrival number; among equal workers the one that arrived first is used first.
    worker : WorkerCapacity
        The worker as the Dask scheduler reports it.
    allocations : Allocations
        The resources allocated there.
    """

    __slots__ = (
        "_totals",
        "allocations",
        "fill",
        "free",
        "gpus",
        "is_exceeded",
        "number",
        "pool",
        "special",
        "worker",
    )

    def __init__(self, number: int, worker: WorkerCapacity, allocations: Allocations) -> None:
        self.number = number
        self.allocations = allocations
        #: The pool of equal workers that contains it; None while it accepts no trials.
        self.pool: WorkerPool | None = None
        self.update(worker)

    def update(self, worker: WorkerCapacity) -> None:
        """Replace the worker by a new reading of the Dask scheduler."""
        self.worker = worker
        #: The name of the device behind each GPU.
        self.gpus = worker.gpus
        #: The worker's resources other than CPU and memory, which other workers may lack.
        self.special = tuple(kind for kind in worker.resource_names if kind not in ("CPU", "memory"))
        self._totals = [(kind, worker.total(kind), worker.for_trials(kind)) for kind in worker.resource_names]
        self.recompute_free()

    def recompute_free(self) -> None:
        """Compute the free capacity from totals and allocations."""
        held = self.allocations
        held.ensure_gpu_count(len(self.gpus))
        free = []
        #: Used fraction of the worker's most used resource, from 0 to 1.
        self.fill = 0.0
        #: Whether trials hold more of some resource than they may: others use it, or are to get it.
        self.is_exceeded = False
        for kind, total, ours in self._totals:
            rest = round(ours - held.amounts.get(kind, 0), PLACES)
            if rest < -EPSILON:
                self.is_exceeded = True
            left = max(0.0, rest)
            free.append((kind, left))
            if 0 < total < inf:
                self.fill = max(self.fill, 1 - left / total)
        loads = held.gpu_loads[: len(self.gpus)]
        if any(self.worker.gpu_loads):
            # The scheduler may know of fewer GPUs yet.
            others = (*self.worker.gpu_loads, *(0.0,) * len(loads))[: len(loads)]
            both = [*zip(loads, others, strict=True)]
            self.is_exceeded |= any(own and own + other > 1 + EPSILON for own, other in both)
            loads = tuple(round(min(1.0, own + other), PLACES) for own, other in both)
        self.free = FreeCapacity(tuple(free), loads)

    def has_free(self, claim: Claim) -> bool:
        """Whether all that a claim had is free again, also on its GPUs."""
        free = dict(self.free.amounts)
        needs = {**claim.resources, "memory": claim.memory} if claim.memory else claim.resources
        if any(free.get(kind, 0.0) + EPSILON < amount for kind, amount in needs.items()):
            return False
        loads = self.free.gpu_loads
        for amount, names in claim.shares:
            part = amount / len(names)
            for name in names:
                # Several of the worker's GPUs may be on one device.
                mine = [n for n, gpu in enumerate(self.gpus) if gpu == name]
                fitting = [n for n in mine if loads[n] + part <= 1 + EPSILON]
                if not fitting:
                    return False
                loads = add_load(loads, fitting[:1], part)
        return True

    def allocate(self, number: int, needs: Mapping[str, float]) -> tuple[str, ...] | None:
        """Allocate `needs`, which must fit, and return the GPU devices; None if none are requested.

        Parameters
        ----------
        number : int
            Number of the placement.
        needs : mapping
            Amounts by resource name.
        """
        amount = needs.get("GPU", 0)
        gpus = (pick_gpus(self.free.gpu_loads, amount) or ()) if amount else ()
        self.allocations.add(number, needs, gpus)
        self.recompute_free()
        return tuple(self.gpus[gpu] for gpu in gpus) if amount else None


def capacity_when_idle(worker: WorkerCapacity) -> FreeCapacity:
    """Return the capacity that a worker has without any allocations."""
    totals = tuple((kind, worker.total(kind)) for kind in worker.resource_names)
    return FreeCapacity(totals, (0.0,) * len(worker.gpus))
