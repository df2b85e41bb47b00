"""Who sits where: the ledger and the seats that it gave out, for the two threads that ask.

The runner's thread looks for seats, the client's loop gives them up and hears of workers that come
and go. Every method takes the one lock and holds it for no longer than it takes to look things up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from dasktune.cluster.run import Run, Seat
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Seating"]

T = TypeVar("T")


class Seating:
    """Gives seats on workers to runs; thread-safe.

    Parameters
    ----------
    heartbeat_timeout : float
        A worker whose last heartbeat is older, in seconds, takes no new trial.
    """

    def __init__(self, *, heartbeat_timeout: float) -> None:
        self._lock = threading.Lock()
        self._ledger = Ledger(heartbeat_timeout=heartbeat_timeout)
        #: The seats that are taken, by what was asked for; a dict for a set that keeps the order.
        self._seats: dict[PlacementGroupFactory, dict[Seat, None]] = {}

    def has_room(self, request: PlacementGroupFactory) -> bool:
        """Whether there is room for another seat now."""
        with self._lock:
            if request.exclusive:
                self._disregard_left_behind()
            return self._ledger.fits(request, now=time.monotonic())

    def takes_ahead(self, request: PlacementGroupFactory, depth: int) -> bool:
        """Whether a seat of which `depth` trials are not too many has fewer."""
        with self._lock:
            return self._seat_ahead(request, depth) is not None

    def seat(self, run: Run, request: PlacementGroupFactory, depth: int) -> bool:
        """Give a run a seat, or a place behind others on one, and say whether there was any."""
        with self._lock:
            seat = self._new_seat(request) or self._seat_ahead(request, depth)
            if seat is not None:
                run.seat = seat
                seat.runs.append(run)
        return seat is not None

    def leave(self, run: Run) -> bool:
        """Take a run off its seat, and say whether the seat was given up because of it."""
        seat = run.seat
        with self._lock:
            seat.runs.remove(run)
            is_free = not seat.runs
            if is_free:
                del self._seats[seat.resources][seat]
                self._ledger.release(seat.placement)
        return is_free

    def admit_others(self, run: Run) -> None:
        """Let others sit on the workers of a run that wanted to be alone there."""
        with self._lock:
            self._ledger.admit_others(run.seat.placement)

    def missing(self, seat: Seat) -> list[str]:
        """Return the addresses of those of its workers that are gone."""
        with self._lock:
            known = self._ledger.workers
            return [address for address in seat.placement.addresses if address not in known]

    def update(self, workers: Mapping[str, WorkerCapacity]) -> set[str]:
        """Take over what the scheduler sees now, and return the addresses that are gone."""
        with self._lock:
            gone = set(self._ledger.workers) - set(workers)
            self._ledger.update(workers)
        return gone

    def remove(self, address: str | None) -> WorkerCapacity | None:
        """Forget a worker that is gone, or all of them, and return what was known of it."""
        with self._lock:
            workers = dict(self._ledger.workers)
            for gone in workers if address is None else (address,):
                self._ledger.remove(gone)
        return None if address is None else workers.get(address)

    def avoid(self, address: str, seconds: float) -> None:
        """Place nothing on a worker for a while."""
        with self._lock:
            # One that is gone, or out of sight with the whole cluster, is new when it comes back.
            if address in self._ledger.workers:
                self._ledger.avoid(address, time.monotonic() + seconds)

    def study(self, look: Callable[[Ledger, int], T]) -> T:
        """Return what a function makes of the ledger and the number of taken seats."""
        with self._lock:
            return look(self._ledger, sum(map(len, self._seats.values())))

    def _new_seat(self, request: PlacementGroupFactory) -> Seat | None:
        placement = self._ledger.place(request, now=time.monotonic())
        if placement is None:
            return None
        head = self._ledger.workers[placement.address]
        seat = Seat(placement=placement, resources=request, relayed=not head.shares_storage)
        self._seats.setdefault(request, {})[seat] = None
        return seat

    def _disregard_left_behind(self) -> None:
        """Let nobody wait for user code to leave that does not obey, which may take for ever."""
        for seats in self._seats.values():
            for seat in seats:
                if seat.runs[0].told:
                    self._ledger.disregard(seat.placement)

    def _seat_ahead(self, request: PlacementGroupFactory, depth: int) -> Seat | None:
        """Return the seat with the fewest trials, if one more would not be too many."""
        if depth < 2 or request.exclusive:
            return None
        # Behind user code that does not leave they would only wait.
        seats = (seat for seat in self._seats.get(request, ()) if not seat.runs[0].tainted)
        seat = min(seats, key=lambda seat: len(seat.runs), default=None)
        return seat if seat is not None and len(seat.runs) < depth else None
