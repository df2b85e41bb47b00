"""What users read while nothing can run."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.cluster.resources.adaptive_demand import Growth
from dasktune.cluster.resources.insufficient import InsufficientResources
from dasktune.errors import PreflightError
from dasktune.placement import Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory

MUCH = PlacementGroupFactory([{"CPU": 64}])


def ledger() -> Ledger:
    books = Ledger()
    books.update({"tcp://a:1": WorkerCapacity(address="tcp://a:1", host="a", nthreads=1)})
    return books


@pytest.mark.parametrize(("advice", "end"), [("", "for them."), ("Try x=1.", "for them.\nTry x=1.")])
def test_giving_up_ends_with_what_the_trainable_has_to_say(advice: str, end: str):
    shortage = InsufficientResources(Growth(), False, advice)
    shortage.check(MUCH, ledger(), 0.0)
    with pytest.raises(PreflightError) as told:
        shortage.check(MUCH, ledger(), 60.0)
    assert str(told.value).endswith(end)


def test_waiting_does_so_too(caplog: Any):
    shortage = InsufficientResources(Growth(), True, "Try x=1.")
    for now in (0.0, 61.0):
        shortage.check(MUCH, ledger(), now)
    assert caplog.text.count("Try x=1.") == 1


def test_a_cluster_without_workers_is_named_soon_with_what_to_do(caplog: Any):
    shortage = InsufficientResources(Growth(), None)
    for now in (0.0, 11.0, 30.0):
        shortage.check(MUCH, Ledger(), now)
    assert caplog.text.count("the cluster has no workers") == 1
    assert "cluster.scale(n)" in caplog.text
    shortage.check(MUCH, Ledger(), 72.0)
    assert caplog.text.count("the cluster has no workers") == 2


def test_a_trial_that_waits_for_its_share_logs_who_holds_the_rest(caplog: Any):
    shortage = InsufficientResources(Growth(), None)
    one = PlacementGroupFactory([{"CPU": 1}])
    for now in (0.0, 61.0):
        shortage.check(one, ledger(), now, share="waits for its share: experiment b holds 6 of 8 CPUs")
    assert (
        "no worker has room for the next trial. The experiment waits for its share: experiment b holds "
        "6 of 8 CPUs; waiting:" in caplog.text
    )
