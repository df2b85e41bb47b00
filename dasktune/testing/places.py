"""Where simulated trials run: on so many slots, or on workers that have so much each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.errors import PreflightError, check
from dasktune.placement import Ledger, Placement, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Cluster", "Slots", "Workers"]

#: CPUs or more of each worker, or such lists by the virtual seconds from which they hold.
Cluster = Sequence[int | WorkerCapacity] | Mapping[float, Sequence[int | WorkerCapacity]]


class Slots:
    """Places for so many trials, whatever they ask for.

    Parameters
    ----------
    count : int
        How many.
    """

    def __init__(self, count: int) -> None:
        check(type(count) is int and count > 0, "slots", "a positive int", count)
        self._count = count
        self._taken: set[str] = set()

    @property
    def changes(self) -> Sequence[float]:
        """When there will be others: never."""
        return ()

    def change(self) -> tuple[str, ...]:
        """Change nothing."""
        return ()

    def offers(self) -> dict[str, dict[str, float]]:
        """Return nothing: nobody knows what a slot has."""
        return {}

    def has_room(self, request: PlacementGroupFactory, now: float) -> bool:
        """Whether a slot is free."""
        return len(self._taken) < self._count

    def take(self, trial_id: str, request: PlacementGroupFactory, now: float) -> str:
        """Take a slot for a trial, and return what it is called."""
        self._taken.add(trial_id)
        return f"slot of {trial_id}"

    def beside(self, trial_id: str) -> tuple[str, ...]:
        """Return the trials that end with a trial's worker: a slot is one of its own."""
        return (trial_id,)

    def admit_others(self, trial_id: str) -> None:
        """Do nothing: each is alone."""

    def give_back(self, trial_id: str) -> None:
        """Free the slot of a trial."""
        self._taken.discard(trial_id)


class Workers:
    """Workers with resources, on which trials are placed as on real ones.

    Parameters
    ----------
    workers : sequence of int or WorkerCapacity, or mapping
        Their CPUs, or all that is known of them; or such lists by the time from which they hold.
    """

    def __init__(self, workers: Cluster) -> None:
        plan = workers if isinstance(workers, Mapping) else {0.0: workers}
        check(0 in plan, "workers", "a list, or a dict of lists of which one is for 0.0", workers)
        times = sorted(plan)
        self._plan = [(when, _by_address(plan[when])) for when in times[1:]]
        self._ledger = Ledger()
        self._ledger.update(_by_address(plan[times[0]]))
        self._placements: dict[str, Placement] = {}

    @property
    def changes(self) -> Sequence[float]:
        """When there will be others."""
        return [when for when, _ in self._plan]

    def change(self) -> tuple[str, ...]:
        """Let the next workers be there instead, and return the trials that end with the old."""
        _, workers = self._plan.pop(0)
        gone = set(self._ledger.workers) - set(workers)
        for address in gone:
            self._ledger.remove(address)
        self._ledger.update(workers)
        placements = self._placements.items()
        return tuple(key for key, one in placements if not gone.isdisjoint(one.addresses))

    def offers(self) -> dict[str, dict[str, float]]:
        """Return what each worker has, by address."""
        return self._ledger.offers()

    def has_room(self, request: PlacementGroupFactory, now: float) -> bool:
        """Whether there is room for a request.

        Raises
        ------
        PreflightError
            If there never will be.
        """
        fits = self._ledger.fits(request, now=now)
        hopeless = not fits and not self._placements and not self._plan
        if hopeless and not self._ledger.ever_fits(request):
            raise PreflightError(
                "resources must be at most what the simulated workers have, got a request that "
                f"they can never meet:\n{self._ledger.table(request)}"
            )
        return fits

    def take(self, trial_id: str, request: PlacementGroupFactory, now: float) -> str:
        """Place a trial, for which there must be room, and return the address of its worker."""
        placement = self._ledger.place(request, now=now)
        assert placement is not None, "there was room for it"
        self._placements[trial_id] = placement
        return placement.address

    def beside(self, trial_id: str) -> tuple[str, ...]:
        """Return the trials that end with the worker of a trial's head, itself included."""
        address = self._placements[trial_id].address
        return tuple(key for key, one in self._placements.items() if address in one.addresses)

    def admit_others(self, trial_id: str) -> None:
        """Let others be placed beside a trial that had to be alone."""
        self._ledger.admit_others(self._placements[trial_id])

    def give_back(self, trial_id: str) -> None:
        """Free what a trial holds."""
        placement = self._placements.pop(trial_id, None)
        if placement is not None:
            self._ledger.release(placement)


def _by_address(workers: Any) -> dict[str, WorkerCapacity]:
    """Return the workers of a list by address, or raise if it is none."""
    check(
        isinstance(workers, Sequence)
        and len(workers) > 0
        and all(isinstance(one, int | WorkerCapacity) for one in workers),
        "workers",
        "a list of sizes or WorkerCapacity, at least one",
        workers,
    )
    known = [
        WorkerCapacity(address=f"worker-{number}", nthreads=one) if isinstance(one, int) else one
        for number, one in enumerate(workers)
    ]
    return {one.address: one for one in known}
