"""When a trial overtakes the tasks of other programs on a worker."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.cluster.driver.task_queues import TaskQueues
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])


def worker(address: str = "x", *, booked: float = 40, leases: float = 0, cpus: float = 4) -> WorkerCapacity:
    """Return a worker of which tasks have booked CPUs, and leases of others hold some."""
    is_full = booked + leases > cpus
    return WorkerCapacity(
        address=address,
        resources={"CPU": cpus},
        used={"CPU": booked + leases},
        overtakable={"CPU": booked} if is_full else {},
    )


class Driver:
    """Reads the workers once a second, as an experiment does."""

    def __init__(
        self,
        *workers: WorkerCapacity,
        request: PlacementGroupFactory | None = ONE,
        queues: TaskQueues | None = None,
        now: float = 0.0,
    ) -> None:
        self.queues, self.ledger, self.now = queues or TaskQueues(pause_s=2), Ledger(), now
        self.workers = {one.address: one for one in workers}
        self.request = request

    def read(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.ledger.update(self.queues.limit(self.workers, self.request, self.ledger, self.now))

    def place(self) -> Any:
        return self.ledger.place(self.request or ONE, now=self.now)


def test_one_trial_overtakes_the_tasks_of_a_worker_after_a_while():
    driver = Driver(worker("x"), worker("y"), worker("z", booked=4))
    driver.read()
    driver.read()
    assert driver.place() is None
    driver.read()
    # One on each worker whose tasks wait, and none where all of them run.
    first, second = driver.place(), driver.place()
    assert {first.address, second.address} == {"x", "y"}
    assert driver.place() is None
    driver.read()
    # Its resources are the tasks' again when it ends.
    assert driver.ledger.exceeds(first)
    driver.ledger.release(first)
    assert not driver.ledger.may_repeat(first)


def test_the_next_trial_overtakes_tasks_a_while_after_the_last_one_has_ended():
    driver = Driver(worker())
    driver.read()
    driver.read(2)
    placement = driver.place()
    for _ in range(20):
        driver.read()
        assert driver.place() is None
    driver.ledger.release(placement)
    driver.read()
    driver.read()
    assert driver.place() is None
    driver.read()
    assert driver.place() is not None


def test_time_without_waiting_trials_does_not_count():
    driver = Driver(worker(), request=None)
    for _ in range(9):
        driver.read()
    driver.request = ONE
    driver.read()
    assert driver.place() is None
    driver.workers = {"x": worker(booked=4)}
    driver.read()  # all tasks run
    driver.workers = {"x": worker()}
    driver.read()
    assert driver.place() is None


@pytest.mark.parametrize(("leases", "fits"), [(0, True), (3, True), (4, False)])
def test_leases_of_other_experiments_are_not_overtaken(leases: float, fits: bool):
    driver = Driver(worker(booked=3, leases=leases) if leases else worker())
    driver.read()
    driver.read(2)
    assert (driver.place() is not None) == fits


def test_a_trial_that_is_too_large_overtakes_nothing_and_bundles_are_placed_apart():
    driver = Driver(worker(), request=PlacementGroupFactory([{"CPU": 5}]))
    driver.read()
    driver.read(2)
    assert driver.place() is None
    pair = PlacementGroupFactory([{"CPU": 3}, {"CPU": 2}])
    driver = Driver(worker("x"), worker("y"), request=pair)
    driver.read()
    driver.read(2)
    placement = driver.place()
    assert placement is not None
    assert len(placement.addresses) == 2


def test_what_the_experiment_may_use_in_the_long_run_does_not_change():
    driver = Driver(worker())
    driver.read()
    before = driver.ledger.available_resources()
    driver.read(2)
    assert driver.ledger.available_resources() == before
    assert driver.place() is not None


PAIR = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD")


@pytest.mark.parametrize("request_", [PAIR, PlacementGroupFactory([{"CPU": 2, "memory": 5}])])
def test_a_trial_that_has_kept_room_idle_overtakes_no_tasks_for_three_times_as_long(
    request_: PlacementGroupFactory,
):
    driver = Driver(worker("x"), worker("y"), request=request_)
    seen = []
    for _ in range(7):
        while driver.place() is None:
            driver.read()
        patience_s, since = driver.queues.patience_s, driver.now
        driver = Driver(worker("x"), worker("y"), request=request_, queues=driver.queues, now=driver.now)
        driver.now += patience_s
        driver.queues.on_given_up(patience_s, driver.now)
        # Another trial had the same seconds, and they have ended for both.
        driver.queues.on_given_up(patience_s, driver.now)
        while driver.place() is None:
            driver.read(15)
        seen.append((patience_s, driver.now - since - patience_s))
    assert seen == [(15, 45), (30, 90), (60, 180), (120, 360), (240, 720), (480, 1440), (480, 1440)]


def test_a_trial_of_one_cpu_overtakes_tasks_meanwhile_and_other_tasks_are_a_new_begin():
    driver = Driver(worker(), request=ONE)
    driver.read()
    driver.queues.on_given_up(driver.queues.patience_s, driver.now)
    driver.read(2)
    assert driver.place() is not None
    driver = Driver(worker("x"), worker("y"), request=PAIR, queues=driver.queues, now=driver.now)
    driver.read()
    driver.read(2)
    assert driver.place() is None
    driver.workers = {"x": worker("x", booked=4), "y": worker("y", booked=4)}
    driver.read()  # no task waits
    assert driver.queues.patience_s == 15
    driver.workers = {"x": worker("x"), "y": worker("y")}
    driver.read()
    driver.read(2)
    assert driver.place() is not None
