"""The fields that the worker adds to every result, and the counters behind them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from dasktune.errors import ConfigError
from dasktune.trial.metrics import number


class AutoMetrics:
    """Adds the auto-filled fields to results; counts iterations, time, timesteps and episodes.

    Parameters
    ----------
    trial_id : str
        The trial's id, part of each result.
    restored : mapping, optional
        Metrics of the checkpoint from which the trial resumes. The totals continue from them; the
        counters since the restore start at 0.
    wall_clock : callable, default=time.time
        Returns the time in epoch seconds.

    Examples
    --------
    >>> fill = AutoMetrics("t1", {"training_iteration": 4, "time_total_s": 8.0})
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
        """Continue the totals from these metrics; the counters since the restore start at 0."""
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

    def __copy__(self) -> AutoMetrics:
        """Copy the counters. It is called for each result, and the default is slow."""
        twin = object.__new__(AutoMetrics)
        twin.__dict__.update(self.__dict__)
        return twin

    def __call__(self, metrics: Mapping[str, Any], elapsed: float) -> dict[str, Any]:
        """Return a result: `metrics` with the auto-filled fields.

        Parameters
        ----------
        metrics : mapping
            The user's metrics. Their `training_iteration`, `timestamp` and `time_this_iter_s` are
            used if present.
        elapsed : float
            Seconds that user code ran since the last result.

        Raises
        ------
        ConfigError
            If ``training_iteration`` is not an int, or another counted field is not a number.
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
    # An int stays an int, so that steps and episodes are whole numbers.
    return int(value) if isinstance(result[name], int) else value


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))


@cache
def _hostname() -> str:
    return socket.gethostname()


@cache
def _node_ip() -> str:
    """Return the address that other hosts see, without a name server, which may be slow."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a reserved address: nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


class UsageMeter:
    """Measures the use of the machine's CPUs and memory, by all its processes.

    It needs no thread: the operating system counts between two results.
    """

    def __init__(self) -> None:
        self._before = _cpu_seconds()

    def __call__(self) -> dict[str, float]:
        """Return the use in percent: of the CPUs since the last call, of the memory now.

        Returns
        -------
        dict
            ``cpu_util_percent`` and ``ram_util_percent``.
        """
        import psutil

        busy, total = _cpu_seconds()
        was_busy, was_total = self._before
        self._before = busy, total
        passed = total - was_total
        # The counters of the operating system have steps of 10 ms, and may decrease.
        share = min(max((busy - was_busy) / passed, 0.0), 1.0) if passed > 0 else 0.0
        memory = float(psutil.virtual_memory().percent)
        return {"cpu_util_percent": round(100 * share, 1), "ram_util_percent": memory}


def _cpu_seconds() -> tuple[float, float]:
    """Return the busy time and the total time of all CPUs together, in seconds."""
    import psutil

    times: Any = psutil.cpu_times()
    # Linux counts the time of virtual guests twice, also as the time of their host.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total
