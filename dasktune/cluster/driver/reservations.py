"""Thread-safe ledger of the reservations made on workers.

The runner's thread makes reservations. The client's event loop frees them and updates the workers.
Every method holds the one lock for a short look-up or change and calls no user code. So no thread
waits long, and no method sees a half-made change.

A worker may disappear between two calls, after the runner's thread has made a reservation on it. So
the executor checks `missing_workers` after it has handed the run to the dispatcher.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dasktune.cluster.driver.trial_run import Reservation, TrialRun
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

T = TypeVar("T")


class Reservations:
    """Makes and frees the reservations of runs; thread-safe.

    Parameters
    ----------
    heartbeat_timeout : float
        A worker whose last heartbeat is older, in seconds, gets no new trial.
    clock : callable, default=time.monotonic
        Returns the time in seconds.
    """

    def __init__(self, *, heartbeat_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        #: Returns the time in seconds.
        self.clock = clock
        self._lock = threading.Lock()
        self._ledger = Ledger(heartbeat_timeout=heartbeat_timeout)
        #: The reservations that are in use, by request. The inner dict is an ordered set.
        self._active: dict[PlacementGroupFactory, dict[Reservation, None]] = {}
        #: Runs that will end soon, in the order of their ends, each with the time until which
        #: another run may be queued behind it.
        self._nearly_ended: dict[TrialRun, float] = {}

    def check_room(self, request: PlacementGroupFactory) -> bool:
        """Return whether there is room for another reservation now.

        For an exclusive request, reservations of abandoned threads no longer count: waiting for
        user code that ignores its stop order could take for ever.
        """
        with self._lock:
            if request.exclusive:
                self._disregard_abandoned()
            return self._ledger.fits(request, now=self.clock())

    def has_room_instead(self, requests: Sequence[tuple[TrialRun, PlacementGroupFactory]]) -> bool:
        """Whether all requests would fit if their runs freed their reservations.

        False if further runs use one of these.
        """
        reservations = [run.reservation for run, _ in requests]
        with self._lock:
            if any(len(one.runs) != 1 for one in reservations):
                return False
            placements = [one.placement for one in reservations]
            wanted = [request for _, request in requests]
            return self._ledger.fits_instead(placements, wanted, now=self.clock())

    def note_nearly_ended(self, run: TrialRun, seconds: float) -> bool:
        """Note that a run will end soon; return whether another run may be queued behind it.

        Parameters
        ----------
        run : TrialRun
            The run.
        seconds : float
            For how long it may.
        """
        with self._lock:
            # It may have ended already.
            if tuple(run.reservation.runs) != (run,):
                return False
            self._nearly_ended[run] = self.clock() + seconds
        return True

    def can_prefetch(self, request: PlacementGroupFactory, depth: int) -> bool:
        """Whether some reservation with this request has fewer than `depth` runs, or ends soon."""
        with self._lock:
            return self._with_queue_room(request, depth) is not None

    def reserve(self, run: TrialRun, request: PlacementGroupFactory, depth: int) -> bool:
        """Reserve resources for a run, or queue it on a reservation; return whether it has one."""
        with self._lock:
            reservation = self._place(request) or self._with_queue_room(request, depth)
            if reservation is not None:
                run.reservation = reservation
                reservation.runs.append(run)
        return reservation is not None

    def release(self, run: TrialRun) -> bool:
        """Remove a run from its reservation; return whether that freed the reservation."""
        reservation = run.reservation
        with self._lock:
            reservation.runs.remove(run)
            self._nearly_ended.pop(run, None)
            is_free = not reservation.runs
            if is_free:
                del self._active[reservation.resources][reservation]
                self._ledger.release(reservation.placement)
                # Under the same lock: the runner's thread may take the room right after it.
                reservation.may_repeat = self._ledger.may_repeat(reservation.placement)
        return is_free

    def admit_others(self, run: TrialRun) -> None:
        """Let other trials use the workers of a run that was to run alone there."""
        with self._lock:
            self._ledger.end_exclusive(run.reservation.placement)

    def missing_workers(self, reservation: Reservation) -> list[str]:
        """Return the addresses of the reservation's workers that have left."""
        with self._lock:
            known = self._ledger.workers
            return [address for address in reservation.placement.addresses if address not in known]

    def update(self, workers: Mapping[str, WorkerCapacity]) -> set[str]:
        """Replace the workers by those just read; return the addresses that have left."""
        with self._lock:
            gone = set(self._ledger.workers) - set(workers)
            self._ledger.update(workers)
        return gone

    def remove(self, address: str | None) -> WorkerCapacity | None:
        """Remove a worker and return its last known state; None removes all and returns None."""
        with self._lock:
            workers = dict(self._ledger.workers)
            for gone in workers if address is None else (address,):
                self._ledger.remove(gone)
        return None if address is None else workers.get(address)

    def avoid(self, address: str, seconds: float) -> None:
        """Place nothing on a worker for some seconds."""
        with self._lock:
            # A worker that has left counts as new when it comes back.
            if address in self._ledger.workers:
                self._ledger.avoid(address, self.clock() + seconds)

    def follow_notice(self, address: str, seconds: float) -> None:
        """Place nothing on a worker until its announced end; a newer notice may come earlier."""
        with self._lock:
            if address in self._ledger.workers:
                self._ledger.avoid(address, self.clock() + seconds, is_leaving=True)

    def with_ledger(self, function: Callable[[Ledger, int], T]) -> T:
        """Call a function with the ledger and the number of reservations, under the lock."""
        with self._lock:
            return function(self._ledger, sum(map(len, self._active.values())))

    def _place(self, request: PlacementGroupFactory) -> Reservation | None:
        placement = self._ledger.place(request, now=self.clock())
        if placement is None:
            return None
        workers = self._ledger.workers
        reservation = Reservation(
            placement=placement,
            resources=request,
            relayed=not workers[placement.address].shares_storage,
            all_share=all(workers[address].shares_storage for address in placement.addresses),
            overtakes=any(workers[address].overtakable for address in placement.addresses),
        )
        self._active.setdefault(request, {})[reservation] = None
        return reservation

    def _disregard_abandoned(self) -> None:
        """Ignore reservations whose user code ignored its stop order."""
        for reservations in self._active.values():
            for reservation in reservations:
                if reservation.runs[0].end_reported:
                    self._ledger.ignore_for_exclusive(reservation.placement)

    def _with_queue_room(self, request: PlacementGroupFactory, depth: int) -> Reservation | None:
        """Return the reservation with the fewest runs, if these are fewer than `depth`.

        If each may have only one run, return one whose run will end soon.
        """
        if request.exclusive:
            return None
        if depth < 2:
            return self._ending_soon(request)
        # A run behind user code that does not stop would only wait. Nor is a run queued on a worker
        # that accepts none, or where the resources are for another experiment.
        found, fewest = None, depth
        for reservation in self._active.get(request, ()):
            # The number of runs is tested first, because there may be thousands of reservations.
            if len(reservation.runs) < fewest and self._may_queue_on(reservation):
                found, fewest = reservation, len(reservation.runs)
        return found

    def _ending_soon(self, request: PlacementGroupFactory) -> Reservation | None:
        """Return the reservation with this request whose only run ends first, if one ends soon.

        Predictions that no longer matter are forgotten.
        """
        now = self.clock()
        for run, until in tuple(self._nearly_ended.items()):
            reservation = run.reservation
            if until < now or len(reservation.runs) > 1:
                del self._nearly_ended[run]
            elif reservation.resources == request and self._may_queue_on(reservation):
                return reservation
        return None

    def _may_queue_on(self, reservation: Reservation) -> bool:
        placement = reservation.placement
        is_stuck = reservation.runs[0].not_reusable
        return not (is_stuck or self._ledger.is_closed(placement) or self._ledger.exceeds(placement))
