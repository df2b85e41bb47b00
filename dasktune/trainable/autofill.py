"""The fields that every result gets on the worker, and the counters behind them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from dasktune.errors import ConfigError
from dasktune.trial.metrics import number

__all__ = ["Autofill"]


class Autofill:
    """Fills results and counts iterations, seconds, timesteps and episodes.

    Parameters
    ----------
    trial_id : str
        Goes into each result.
    restored : mapping, optional
        Metrics of the checkpoint from which the trial goes on. The totals count on from them; what
        counts since the restore begins at 0.
    wall_clock : callable, default=time.time
        Epoch seconds.

    Examples
    --------
    >>> fill = Autofill("t1", {"training_iteration": 4, "time_total_s": 8.0})
    >>> result = fill({"loss": 0.5}, elapsed=2.0)
    >>> result["training_iteration"], result["iterations_since_restore"], result["time_total_s"]
    (5, 1, 10.0)
    """

    def __init__(
        self,
        trial_id: str,
        restored: Mapping[str, Any] | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.trial_id = trial_id
        self._wall_clock = wall_clock
        self.restore(restored or {})

    def restore(self, metrics: Mapping[str, Any]) -> None:
        """Count on from these metrics; what counts since the restore begins at 0."""
        #: ``training_iteration`` of the last result.
        self.iteration = int(metrics.get("training_iteration", 0))
        self.time_total = float(metrics.get("time_total_s", 0.0))
        self._timesteps = metrics.get("timesteps_total")
        self._episodes = metrics.get("episodes_total")
        self._iterations_since_restore = 0
        self._time_since_restore = 0.0
        self._timesteps_since_restore: float = 0

    def state(self) -> dict[str, Any]:
        """Return the totals, under the names that :meth:`restore` reads."""
        totals = {"training_iteration": self.iteration, "time_total_s": self.time_total}
        counts = {"timesteps_total": self._timesteps, "episodes_total": self._episodes}
        return {**totals, **{name: value for name, value in counts.items() if value is not None}}

    def __copy__(self) -> Autofill:
        """Copy the counters; called for each result, and the usual way is slow."""
        twin = object.__new__(Autofill)
        twin.__dict__.update(self.__dict__)
        return twin

    def __call__(self, metrics: Mapping[str, Any], elapsed: float) -> dict[str, Any]:
        """Return a result: `metrics` with the fields.

        Parameters
        ----------
        metrics : mapping
            What the user reported. `training_iteration`, `timestamp` and `time_this_iter_s` are
            taken from there if present.
        elapsed : float
            Seconds that user code ran since the last result.

        Raises
        ------
        ConfigError
            If a field that is counted on is no number.
        """
        result = dict(metrics)
        self._count_iteration(result)
        self._count_time(result, elapsed)
        self._count_steps(result)
        now = self._wall_clock()
        result.setdefault("timestamp", int(now))
        result.setdefault("done", False)
        return result | {
            "trial_id": self.trial_id,
            "date": _date(int(now)),
            "pid": os.getpid(),
            "hostname": _hostname(),
            "node_ip": _node_ip(),
        }

    def _count_iteration(self, result: dict[str, Any]) -> None:
        iteration = result.setdefault("training_iteration", self.iteration + 1)
        if type(iteration) is not int:
            raise ConfigError(f"metrics['training_iteration'] must be an int, got {iteration!r}")
        self.iteration = iteration
        self._iterations_since_restore += 1
        result["iterations_since_restore"] = self._iterations_since_restore

    def _count_time(self, result: dict[str, Any], elapsed: float) -> None:
        result.setdefault("time_this_iter_s", elapsed)
        seconds = _counted(result, "time_this_iter_s")
        self.time_total += seconds
        self._time_since_restore += seconds
        result["time_total_s"] = self.time_total
        result["time_since_restore"] = self._time_since_restore

    def _count_steps(self, result: dict[str, Any]) -> None:
        if "timesteps_this_iter" in result:
            steps = _counted(result, "timesteps_this_iter")
            self._timesteps = (self._timesteps or 0) + steps
            self._timesteps_since_restore += steps
            result["timesteps_since_restore"] = self._timesteps_since_restore
        if "episodes_this_iter" in result:
            self._episodes = (self._episodes or 0) + _counted(result, "episodes_this_iter")
        for name, count in (
            ("timesteps_total", self._timesteps),
            ("episodes_total", self._episodes),
        ):
            if count is not None:
                result.setdefault(name, count)


def _counted(result: Mapping[str, Any], name: str) -> float:
    value = number(result[name])
    if value is None:
        raise ConfigError(f"metrics[{name!r}] must be a number, got {result[name]!r}")
    # Counts stay whole numbers.
    return int(value) if isinstance(result[name], int) else value


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))


@cache
def _hostname() -> str:
    return socket.gethostname()


@cache
def _node_ip() -> str:
    """Return the address that other hosts see; asking a name server for it may take long."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a reserved address: nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
