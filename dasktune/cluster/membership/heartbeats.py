"""Measures how long workers have been silent, and does not count a jump of the clock as silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf


class HeartbeatAges:
    """Counts each worker's silence from one reading to the next.

    The scheduler stamps heartbeats with the time of day. That clock may be set, and it continues
    while the scheduler, the driver or the whole machine sleeps and receives no heartbeat. So the
    age of the stamp is used only when a worker is seen for the first time. After that only a new
    stamp counts as a heartbeat. Each reading without a new stamp adds the time since the reading
    before to the silence, and at most the largest step.

    A worker that answers the driver is not silent either: after its clock was set back, it sends no
    heartbeat until the clock reaches the old time again.

    Examples
    --------
    >>> ages = HeartbeatAges()
    >>> def age(heartbeat: float, age: float, now: float) -> float:
    ...     return ages.update({"tcp://a:1": (heartbeat, age)}, now, 2.0)["tcp://a:1"]
    >>> age(heartbeat=1000.0, age=0.5, now=0.0)
    0.5
    >>> age(heartbeat=1000.0, age=3600.5, now=1.0)
    1.5
    >>> age(heartbeat=4601.0, age=0.25, now=2.0)
    0.25
    """

    def __init__(self) -> None:
        #: The last heartbeat of each worker, and the age that was counted.
        self._previous: dict[str, tuple[float, float]] = {}
        self._read_at = 0.0

    def update(
        self,
        heartbeats: Mapping[str, tuple[float, float]],
        now: float,
        max_step: float,
        answered_at: Callable[[str], float] = lambda _: -inf,
    ) -> dict[str, float]:
        """Return the counted silence of each worker in seconds, by address.

        Parameters
        ----------
        heartbeats : mapping
            For all workers by address the time of the last heartbeat and its age in seconds, both
            on the scheduler's clock.
        now : float
            Seconds on a monotonic clock.
        max_step : float
            Largest number of seconds to count since the last reading.
        answered_at : callable, optional
            Given an address, returns when that worker last answered a call, on the same clock.
        """
        passed = min(now - self._read_at, max_step)
        self._read_at = now
        ages = {}
        for address, (heartbeat, age) in heartbeats.items():
            if (before := self._previous.get(address)) is not None:
                age = before[1] + passed if before[0] == heartbeat else min(age, passed)
            ages[address] = min(age, now - answered_at(address))
        self._previous = {address: (heartbeats[address][0], age) for address, age in ages.items()}
        return ages
