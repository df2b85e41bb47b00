"""How busy the machine of a trial is, for trials whose configuration asks for it."""

from __future__ import annotations

from typing import Any

__all__ = ["UsageMeter"]


class UsageMeter:
    """Measures what is used of the machine, by whomever.

    No thread looks at the clock: between two results the operating system has counted.
    """

    def __init__(self) -> None:
        self._before = _seconds()

    def __call__(self) -> dict[str, float]:
        """Return how much is used, in percent: of the CPUs since the last call, of the memory now.

        Returns
        -------
        dict
            ``cpu_util_percent`` and ``ram_util_percent``.
        """
        import psutil

        busy, total = _seconds()
        was_busy, was_total = self._before
        self._before = busy, total
        passed = total - was_total
        # The clock of the operating system has steps of 10 ms, and may be set back.
        share = min(max((busy - was_busy) / passed, 0.0), 1.0) if passed > 0 else 0.0
        memory = float(psutil.virtual_memory().percent)
        return {"cpu_util_percent": round(100 * share, 1), "ram_util_percent": memory}


def _seconds() -> tuple[float, float]:
    """Return for how long all CPUs together have been busy, and have been there."""
    import psutil

    times: Any = psutil.cpu_times()
    # Linux counts the time of guests a second time, as that of their hosts.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total
