"""What the executor reports of the trials that wait, without a cluster."""

from __future__ import annotations

from dasktune.cluster.driver.executor import DaskTrialExecutor
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import ElasticPlacement, HostPlacement


def test_an_experiment_requests_what_the_workers_can_hold_until_it_ends() -> None:
    ledger = Ledger()
    ledger.update({"a": WorkerCapacity(address="a", nthreads=3, resources={"CPU": 3})})
    executor = object.__new__(DaskTrialExecutor)
    executor._waiting = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4), 5
    executor._closed = False
    waiting = executor._waiting_trials(ledger, 0)
    assert waiting.plain == [([{"CPU": 1}] * 3, "PACK", 5)]
    # Other experiments would leave room for trials that start no more.
    executor._closed = True
    assert executor._waiting_trials(ledger, 0).plain == []
