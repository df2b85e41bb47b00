"""Where simulated trials run: on a number of slots, or on workers with resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.errors import PreflightError, check
from dasktune.placement import Ledger, Placement, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory, least_request

#: CPUs or `WorkerCapacity` of each worker, or ``{virtual seconds: such a list from then on}``.
Cluster = Sequence[int | WorkerCapacity] | Mapping[float, Sequence[int | WorkerCapacity]]


class Slots:
    """A number of slots, each of which runs one trial, whatever resources it requests.

    Parameters
    ----------
    count : int
        The number of slots.
    """

    def __init__(self, count: int) -> None:
        check(type(count) is int and count > 0, "slots", "a positive int", count)
        self._count = count
        self._occupied: set[str] = set()

    @property
    def changes(self) -> Sequence[float]:
        """The times at which the slots change: none."""
        return ()

    def change(self) -> tuple[str, ...]:
        """Change nothing."""
        return ()

    def offers(self) -> dict[str, dict[str, float]]:
        """Return ``{}``: slots have no resources."""
        return {}

    def has_room(self, request: PlacementGroupFactory, now: float) -> bool:
        """Whether a slot is free."""
        return len(self._occupied) < self._count

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory], now: float) -> bool:
        """Return True: the slot of a trial is enough for any request."""
        return True

    def reserve(self, trial_id: str, request: PlacementGroupFactory, now: float) -> str:
        """Reserve a slot for a trial, and return its name."""
        self._occupied.add(trial_id)
        return f"slot of {trial_id}"

    def lost_with(self, trial_id: str) -> tuple[str, ...]:
        """Return the trials that are lost with a trial's worker: only itself."""
        return (trial_id,)

    def admit_others(self, trial_id: str) -> None:
        """Do nothing: each trial has its own slot."""

    def release(self, trial_id: str) -> None:
        """Free the slot of a trial."""
        self._occupied.discard(trial_id)


class Workers:
    """Workers with resources, on which trials are placed as on a real cluster.

    Parameters
    ----------
    workers : sequence of int or WorkerCapacity, or mapping
        CPUs or capacity of each worker; or a mapping from virtual times in seconds to such lists,
        each of which holds from its time on.
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
        """The times at which the workers change."""
        return [when for when, _ in self._plan]

    def change(self) -> tuple[str, ...]:
        """Replace the workers by the next ones, and return the trials on removed workers."""
        _, workers = self._plan.pop(0)
        gone = set(self._ledger.workers) - set(workers)
        for address in gone:
            self._ledger.remove(address)
        self._ledger.update(workers)
        placements = self._placements.items()
        return tuple(key for key, one in placements if not gone.isdisjoint(one.addresses))

    def offers(self) -> dict[str, dict[str, float]]:
        """Return the resources of each worker, by address."""
        return self._ledger.available_resources()

    def has_room(self, request: PlacementGroupFactory, now: float) -> bool:
        """Whether there is room for a request.

        Raises
        ------
        PreflightError
            If the workers can never meet the request.
        """
        fits = self._ledger.fits(request, now=now)
        hopeless = not fits and not self._placements and not self._plan
        if hopeless and not self._ledger.fits_when_idle(least_request(request)):
            raise PreflightError(
                "resources must be at most what the simulated workers have, got a request that "
                f"they can never meet:\n{self._ledger.table(request)}"
            )
        return fits

    def has_room_instead(self, requests: Mapping[str, PlacementGroupFactory], now: float) -> bool:
        """Whether all requests would fit if their trials released their resources."""
        placements = [self._placements[trial_id] for trial_id in requests]
        return self._ledger.fits_instead(placements, [*requests.values()], now=now)

    def reserve(self, trial_id: str, request: PlacementGroupFactory, now: float) -> str:
        """Place a trial and return the address of its worker; there must be room."""
        placement = self._ledger.place(request, now=now)
        assert placement is not None, "there was room for it"
        self._placements[trial_id] = placement
        return placement.address

    def lost_with(self, trial_id: str) -> tuple[str, ...]:
        """Return all trials that are lost if the worker of a trial's first bundle is lost."""
        address = self._placements[trial_id].address
        return tuple(key for key, one in self._placements.items() if address in one.addresses)

    def admit_others(self, trial_id: str) -> None:
        """Let other trials be placed on the worker of an exclusive trial."""
        self._ledger.end_exclusive(self._placements[trial_id])

    def release(self, trial_id: str) -> None:
        """Release the resources of a trial."""
        placement = self._placements.pop(trial_id, None)
        if placement is not None:
            self._ledger.release(placement)


def _by_address(workers: Any) -> dict[str, WorkerCapacity]:
    """Return the workers of a list by address."""
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
