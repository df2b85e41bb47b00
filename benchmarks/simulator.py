"""What an event costs the driver, without a cluster: ``python -m benchmarks.simulator``."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Generator, Mapping
from typing import Any

import dasktune as tune
from benchmarks._measure import Figures
from dasktune.schedulers import ASHAScheduler, TrialScheduler
from dasktune.testing import simulate
from dasktune.testing.memory_store import MemoryStore

__all__ = ["CountingStore", "simulator"]

#: Results that each trial would report.
_STEPS = 10

_SLOTS = 64


class CountingStore(MemoryStore):
    """A store that encodes, counts and discards every record, and saves no snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.records = 0

    def append(self, record: Mapping[str, Any]) -> int:
        super().append(record)
        self._lines.clear()
        self.records += 1
        return self.records

    def commit(self, force: bool = False) -> int:
        return self.records

    def save_snapshot(self, capture: Callable[[], dict[str, Any]]) -> None:
        pass


def _curve(config: dict[str, Any]) -> Generator[tuple[dict[str, float], float], None, None]:
    for step in range(_STEPS):
        yield {"loss": config["x"] / (step + 1)}, 1.0


def _simulate(trials: int, scheduler: TrialScheduler | None) -> tuple[int, Any]:
    store = CountingStore()
    grid = simulate(
        _curve,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=trials, scheduler=scheduler, seed=0
        ),
        slots=_SLOTS,
        store=store,
    )
    return store.records, grid


def _events_per_s(trials: int, scheduler: TrialScheduler | None) -> float:
    begun = time.perf_counter()
    records, _ = _simulate(trials, scheduler)
    return records / (time.perf_counter() - begun)


def _bytes_per_trial(trials: int) -> float:
    """Return the bytes that the driver keeps of a finished trial."""
    _simulate(2, None)
    gc.collect()
    tracemalloc.start()
    try:
        _, grid = _simulate(trials, None)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        return kept / len(grid)
    finally:
        tracemalloc.stop()


def simulator(few: int = 1_000, many: int = 10_000) -> Figures:
    """Return the events per second for few trials and for many; the cost of one must not grow."""
    figures = {"bytes_per_trial": _bytes_per_trial(few)}
    for name, make in (("fifo", lambda: None), ("asha", lambda: ASHAScheduler(max_t=_STEPS))):
        small, large = _events_per_s(few, make()), _events_per_s(many, make())
        figures |= {
            f"{name}_few_per_s": small,
            f"{name}_many_per_s": large,
            f"{name}_cost_grows": small / large,
        }
    return figures


def main() -> None:
    for name, value in simulator().items():
        print(f"{name:20} {value:,.3f}" if value < 10 else f"{name:20} {value:,.0f}")


if __name__ == "__main__":
    main()
