from __future__ import annotations

from dasktune.placement import CapacityEstimate, Ledger, WorkerCapacity
from dasktune.trial.resources import PlacementGroupFactory


def request(*bundles: dict[str, float], strategy: str = "PACK") -> PlacementGroupFactory:
    return PlacementGroupFactory(bundles, strategy)


def test_what_is_taken_is_there_for_no_other():
    outlook = CapacityEstimate({"a": {"CPU": 4, "GPU": 1}, "b": {"CPU": 2}})
    outlook.allocate("a", {"CPU": 3, "GPU": 0.5})
    outlook.allocate("gone", {"CPU": 1})
    assert outlook.fits(request({"CPU": 2}))
    assert outlook.fits(request({"CPU": 1, "GPU": 0.5}))
    assert not outlook.fits(request({"CPU": 2, "GPU": 0.5}))
    assert outlook.place(request({"CPU": 1}, {"CPU": 2}))
    assert not outlook.place(request({"CPU": 1}))
    assert outlook.fits(request({}))


def test_a_worker_of_which_too_much_is_taken_has_nothing():
    outlook = CapacityEstimate({"a": {"CPU": 2, "GPU": 1}})
    outlook.allocate("a", {"CPU": 3})
    assert not outlook.fits(request({"GPU": 1}))


def test_a_ledger_offers_what_others_have_not_taken_on_workers_that_take_trials():
    ledger = Ledger()
    known = [
        WorkerCapacity(address="a", nthreads=4, used={"CPU": 1, "TPU": 3}, memory_limit=9),
        WorkerCapacity(address="b", resources={"CPU": 2, "TPU": 2}, used={"TPU": 3}),
        WorkerCapacity(address="c", status="paused"),
        WorkerCapacity(address="d", age=100.0),
    ]
    ledger.update({one.address: one for one in known})
    assert ledger.place(request({"CPU": 1}), now=0.0)
    assert ledger.available_resources() == {
        "a": {"CPU": 3, "memory": 9},
        "b": {"CPU": 2, "TPU": 0, "memory": float("inf")},
    }
