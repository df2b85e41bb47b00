"""What users read when their cluster has dropped workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status
from distributed.deploy import SpecCluster

from dasktune.cluster.resources.adaptive_demand import Growth
from dasktune.cluster.resources.insufficient import DroppedWorkers, InsufficientResources
from dasktune.placement import Ledger
from dasktune.trial.resources import PlacementGroupFactory


class Cluster(SpecCluster):  # type: ignore[misc]
    """The books of a cluster of three workers, without the workers."""

    def __init__(self, *there: int) -> None:
        self._adaptive = None
        self.worker_spec = {name: {} for name in range(3)}
        self.workers = dict.fromkeys(there)

    def __del__(self) -> None:
        """Close nothing: nothing was started."""


def test_a_lasting_loss_is_logged_once_with_the_call_to_mend_it(caplog: Any) -> None:
    cluster = Cluster(0, 1, 2)
    dropped = DroppedWorkers(Growth(cluster))
    dropped.check(0.0)
    cluster.workers.pop(1)
    for now in (1.0, 10.0):
        dropped.check(now)
    assert caplog.text == ""
    for now in (11.0, 60.0):
        dropped.check(now)
    assert caplog.text.count("Cluster has dropped 1 of its 3 workers") == 1
    assert "Call cluster.scale(3)" in caplog.text
    cluster.workers.pop(2)
    for now in (61.0, 72.0):
        dropped.check(now)
    assert caplog.text.count("Cluster has dropped 2 of its 3 workers") == 1


def test_workers_that_are_started_or_scaled_away_are_not_dropped(caplog: Any) -> None:
    cluster = Cluster(0, 1)
    dropped = DroppedWorkers(Growth(cluster))
    dropped.check(0.0)
    cluster.workers[2] = None
    dropped.check(9.0)
    cluster.workers.pop(2)
    cluster.worker_spec.pop(2)
    for now in (10.0, 30.0):
        dropped.check(now)
    assert caplog.text == ""


@pytest.mark.parametrize("adaptive", [True, False])
def test_workers_that_failed_to_start_are_named_once_with_the_calls_to_mend_it(
    caplog: Any, adaptive: bool
) -> None:
    cluster = Cluster(0, 1, 2)
    if adaptive:
        cluster._adaptive = SimpleNamespace(periodic_callback=object())
    cluster.workers[1] = SimpleNamespace(status=Status.failed)
    cluster.workers[2] = SimpleNamespace(status=Status.running)
    dropped = DroppedWorkers(Growth(cluster))
    for now in (0.0, 60.0):
        dropped.check(now)
    assert caplog.text.count("1 workers of Cluster have failed to start") == 1
    assert "cluster.sync(cluster.scale_down, [1])" in caplog.text
    assert ("and then cluster.scale" in caplog.text) is not adaptive
    cluster.workers[2].status = Status.failed
    dropped.check(61.0)
    assert "cluster.sync(cluster.scale_down, [1, 2])" in caplog.text


@pytest.mark.parametrize("named", ["tcp://127.0.0.1:8786", None])
def test_of_a_cluster_that_is_only_an_address_nothing_is_known(named: Any) -> None:
    growth = Growth(named, embedded=named is None)
    assert (growth.dropped_workers, growth.failed_workers) == ((0, 0), [])


def test_a_wait_without_workers_logs_the_number_to_scale_to(caplog: Any) -> None:
    shortage = InsufficientResources(Growth(Cluster()), None)
    for now in (0.0, 11.0):
        shortage.check(PlacementGroupFactory([{"CPU": 1}]), Ledger(), now)
    assert "cluster.scale(3)" in caplog.text
