"""How long workers have been silent, counted so that no clock's jump is taken for silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from dasktune.placement import WorkerCapacity

__all__ = ["Pulse"]


class Pulse:
    """Counts each worker's silence from one reading to the next.

    The scheduler stamps heartbeats with the time of day. That may be set, and it goes on while the
    scheduler, the driver or the whole machine sleeps and hears no heartbeat of the healthiest
    worker. So what the stamps say is believed only when a worker is seen for the first time.
    From then on it matters only whether there is a new one, and silence is what passes between
    readings without, of which none counts for more than it should have taken.

    Nor is a worker silent that answers us: where the clock is put back, Dask sends no heartbeat
    until the old time has come again.

    Parameters
    ----------
    longest : float
        Seconds that count at most between two readings.

    Examples
    --------
    >>> pulse = Pulse(2.0)
    >>> def age(heartbeat: float, age: float, now: float) -> float:
    ...     worker = WorkerCapacity(address="tcp://a:1", heartbeat=heartbeat, age=age)
    ...     return pulse.read({"tcp://a:1": worker}, now)["tcp://a:1"].age
    >>> age(heartbeat=1000.0, age=0.5, now=0.0)
    0.5
    >>> age(heartbeat=1000.0, age=3600.5, now=1.0)
    1.5
    >>> age(heartbeat=4601.0, age=0.25, now=2.0)
    0.25
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._known: Mapping[str, WorkerCapacity] = {}
        self._read_at = 0.0

    def read(
        self,
        workers: Mapping[str, WorkerCapacity],
        now: float,
        answered: Callable[[str], float] = lambda _: -inf,
    ) -> dict[str, WorkerCapacity]:
        """Return the workers with their ages as they are counted here.

        Parameters
        ----------
        workers : mapping
            All workers by address, as the scheduler knows them.
        now : float
            Seconds on a clock that does not jump.
        answered : callable, optional
            Given an address, returns when the worker there last answered a call, on that clock.
        """
        passed = min(now - self._read_at, self._longest)
        self._read_at = now
        self._known = found = {
            address: self._with_age(
                worker, self._known.get(address), passed, now - answered(address)
            )
            for address, worker in workers.items()
        }
        return found

    @staticmethod
    def _with_age(
        worker: WorkerCapacity,
        before: WorkerCapacity | None,
        passed: float,
        since_answer: float,
    ) -> WorkerCapacity:
        age = worker.age
        if before is not None:
            is_silent = before.heartbeat == worker.heartbeat
            age = before.age + passed if is_silent else min(age, passed)
        age = min(age, since_answer)
        return worker if age == worker.age else replace(worker, age=age)
