"""Measures how long workers have been silent, and does not count a jump of the clock as silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from dasktune.placement import WorkerCapacity

__all__ = ["HeartbeatAges"]


class HeartbeatAges:
    """Counts each worker's silence from one reading to the next.

    The scheduler stamps heartbeats with the time of day. That clock may be set, and it continues
    while the scheduler, the driver or the whole machine sleeps and receives no heartbeat. So the
    age of the stamp is used only when a worker is seen for the first time. After that only a new
    stamp counts as a heartbeat. Each reading without a new stamp adds the time since the reading
    before to the silence, and at most `max_step`.

    A worker that answers the driver is not silent either: after its clock was set back, it sends no
    heartbeat until the clock reaches the old time again.

    Parameters
    ----------
    max_step : float
        Largest number of seconds to count between two readings.

    Examples
    --------
    >>> ages = HeartbeatAges(2.0)
    >>> def age(heartbeat: float, age: float, now: float) -> float:
    ...     worker = WorkerCapacity(address="tcp://a:1", heartbeat=heartbeat, age=age)
    ...     return ages.update({"tcp://a:1": worker}, now)["tcp://a:1"].age
    >>> age(heartbeat=1000.0, age=0.5, now=0.0)
    0.5
    >>> age(heartbeat=1000.0, age=3600.5, now=1.0)
    1.5
    >>> age(heartbeat=4601.0, age=0.25, now=2.0)
    0.25
    """

    def __init__(self, max_step: float) -> None:
        self._max_step = max_step
        self._previous: Mapping[str, WorkerCapacity] = {}
        self._read_at = 0.0

    def update(
        self,
        workers: Mapping[str, WorkerCapacity],
        now: float,
        answered_at: Callable[[str], float] = lambda _: -inf,
    ) -> dict[str, WorkerCapacity]:
        """Return the workers with their counted silence as the age.

        Parameters
        ----------
        workers : mapping
            All workers by address, as read from the scheduler.
        now : float
            Seconds on a monotonic clock.
        answered_at : callable, optional
            Given an address, returns when that worker last answered a call, on the same clock.
        """
        passed = min(now - self._read_at, self._max_step)
        self._read_at = now
        self._previous = found = {
            address: self._with_age(worker, self._previous.get(address), passed, now - answered_at(address))
            for address, worker in workers.items()
        }
        return found

    @staticmethod
    def _with_age(
        worker: WorkerCapacity, before: WorkerCapacity | None, passed: float, since_answer: float
    ) -> WorkerCapacity:
        age = worker.age
        if before is not None:
            is_silent = before.heartbeat == worker.heartbeat
            age = before.age + passed if is_silent else min(age, passed)
        age = min(age, since_answer)
        return worker if age == worker.age else replace(worker, age=age)
