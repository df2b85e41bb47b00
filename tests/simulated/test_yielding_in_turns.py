"""Experiments whose trials yield to each other, in virtual time: their trials get on.

The plugin of the scheduler and the choice of the trials that yield are the real ones. The drivers
and workers are short models: a start takes `restore` seconds, each step `seconds`, and a trial that
was told to yield leaves with its next result.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing_kit import Scheduler

from dasktune.cluster.driver.yielding import YieldChooser

#: Virtual seconds between two looks at everything.
TICK = 0.5

#: Amounts are sums of whole CPUs.
EPSILON = 1e-6


class Driver:
    """An experiment with trials without end, whose results and checkpoints cost no time."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        *,
        trials: int,
        restore: float,
        seconds: float,
        yields_after: float,
        weight: float = 1.0,
    ) -> None:
        self.name, self.scheduler, self.weight = name, scheduler, weight
        self.restore, self.seconds = restore, seconds
        self.chooser = YieldChooser(yields_after, can_save=True)
        #: Trials that wait, those that have yielded first.
        self.queue = deque((f"{name}{number}", 0) for number in range(trials))
        self.runs: list[Any] = []
        self.steps: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        #: For how long each run that has yielded was trained, and how long its start took.
        self.trained: list[tuple[float, float]] = []
        self.made = 0

    def work(self) -> None:
        """Let trials start, report results, and leave if they were told to."""
        now = self.scheduler.now
        for run in list(self.runs):
            if run.next_result > now + EPSILON:
                continue
            self.steps[run.trial_id] += 1
            run.first_result_at = run.first_result_at or now
            run.next_result = now + self.seconds
            if run.order is not None:
                self.runs.remove(run)
                self.scheduler.release(run.lease)
                if run.spec.checkpoint is not None:
                    self.trained.append((now - run.first_result_at, run.first_result_at - run.started_at))
                self.queue.appendleft((run.trial_id, self.starts[run.trial_id]))

    def read(self) -> None:
        """Read the workers: start trials where there is room, and choose those that yield."""
        answer = self.scheduler.read(self.name, len(self.queue), weight=self.weight)
        over, seconds = answer["over"]
        for run in self.chooser.choose(over, seconds, self.runs, self.scheduler.now):
            run.order = "yield"
        for address, worker in self.scheduler.workers.items():
            withheld = answer["withheld"].get(address, 0.0)
            while (
                self.queue
                and worker.resources["CPU"] - worker.used_resources["CPU"] - withheld + EPSILON >= 1
            ):
                self.start(address)

    def start(self, address: str) -> None:
        trial, starts = self.queue.popleft()
        self.made += 1
        now = self.scheduler.now
        placement = SimpleNamespace(addresses=(address,))
        self.runs.append(
            SimpleNamespace(
                trial_id=trial,
                lease=self.scheduler.hold(self.name, address, self.made),
                reservation=SimpleNamespace(placement=placement),
                spec=SimpleNamespace(checkpoint="saved" if starts else None),
                end_reported=False,
                received_seq=1,
                order=None,
                started_at=now,
                first_result_at=None,
                next_result=now + self.restore + self.seconds,
            )
        )
        self.starts[trial] += 1


def simulate(scheduler: Scheduler, drivers: list[Driver], seconds: float) -> None:
    """Let all drivers work, and read the workers once a second or when they are notified."""
    for tick in range(int(seconds / TICK)):
        notified = scheduler.advance(TICK)
        for driver in drivers:
            driver.work()
        for driver in drivers:
            if tick % 2 == 0 or driver.name in notified:
                driver.read()


def useful(drivers: list[Driver]) -> float:
    """Return the CPU-seconds of all steps."""
    return sum(driver.steps.total() * driver.seconds for driver in drivers)


@pytest.mark.parametrize("yields_after", [0, 5])
def test_two_experiments_on_one_worker_spend_most_of_the_time_on_training(yields_after: float) -> None:
    scheduler = Scheduler(x=1)
    drivers = [
        Driver(name, scheduler, trials=1, restore=20, seconds=1, yields_after=yields_after) for name in "ab"
    ]
    simulate(scheduler, drivers, 2000)
    assert all(driver.starts.total() > 5 for driver in drivers), "they take turns"
    first, second = (driver.steps.total() for driver in drivers)
    assert first == pytest.approx(second, rel=0.3)
    assert useful(drivers) > 0.45 * 2000


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from([0, 3, 15]),
            st.sampled_from([0.5, 2]),
            st.sampled_from([0, 4, inf]),
            st.sampled_from([1, 1, 2]),
        ),
        min_size=2,
        max_size=3,
    ),
)
def test_trials_that_yield_train_for_as_long_as_they_start(
    sizes: list[int], experiments: list[tuple[int, float, float, float, float]]
) -> None:
    scheduler = Scheduler(**{f"w{number}": size for number, size in enumerate(sizes)})
    drivers = [
        Driver(
            name,
            scheduler,
            trials=trials,
            restore=restore,
            seconds=seconds,
            yields_after=yields_after,
            weight=weight,
        )
        for name, (trials, restore, seconds, yields_after, weight) in zip("abc", experiments, strict=False)
    ]
    simulate(scheduler, drivers, 200)
    halfway = [driver.steps.total() for driver in drivers]
    simulate(scheduler, drivers, 200)
    for driver in drivers:
        assert all(trained + TICK >= start for trained, start in driver.trained)
    # If all experiments yield, the trials of each one advance.
    if all(driver.chooser.yields_after < inf for driver in drivers):
        assert all(driver.steps.total() > before for driver, before in zip(drivers, halfway, strict=True))
    # At most half of the time goes to starts, and some to the time until freed room is used.
    demanded = min(sum(sizes), sum(one[0] for one in experiments))
    assert useful(drivers) >= 0.4 * demanded * 400
