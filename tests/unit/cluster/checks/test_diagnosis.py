"""What the doctor makes of what it was told; real clusters are looked at in tests/cluster."""

from __future__ import annotations

import pytest

from dasktune.cluster.checks.diagnosis import (
    SCHEDULER,
    diagnose_connection,
    diagnose_package,
    diagnose_packages,
    diagnose_python,
    diagnose_resources,
    diagnose_shared_storage,
    diagnose_workers,
)
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage


@pytest.mark.parametrize(
    ("name", "theirs", "level", "finding"),
    [
        ("dasktune", {SCHEDULER: None, "a": "1"}, "ok", "1 everywhere"),
        ("dasktune", {"a": None, "b": "1"}, "fail", "1 here, missing on 1: a"),
        ("dasktune", {"a": "2", "b": "2"}, "fail", "1 here, other versions on 2: 2 on a for one"),
        ("numpy", {SCHEDULER: None, "a": "1"}, "ok", "1 everywhere"),
        ("numpy", {"a": "2"}, "warn", "1 here, other versions on 1: 2 on a for one"),
        ("dask", {SCHEDULER: "2", "a": "1"}, "warn", "2 on the scheduler for one"),
    ],
)
def test_versions_are_judged_by_what_would_break(name, theirs, level, finding):
    found = diagnose_package(name, "1", theirs)
    assert found.level == level
    assert finding in found.finding
    assert ("install" in found.advice.lower()) == (level != "ok")
    # No package index has dasktune.
    assert "pip install dasktune" not in found.advice


def test_dask_and_distributed_of_another_release_are_one_warning():
    ours = {"dask": "2", "distributed": "2", "numpy": "1"}
    answers = {"a": {"dask": "3", "distributed": "3", "numpy": "1"}, "b": ours}
    found = list(diagnose_packages(ours, answers))
    assert [(one.level, one.subject) for one in found] == [("warn", "distributed"), ("ok", "numpy")]
    assert "pip install distributed==2" in found[0].advice
    # Half an upgrade is another matter.
    answers["a"]["distributed"] = "2"
    found = list(diagnose_packages(ours, answers))
    assert [(one.level, one.subject) for one in found][:2] == [("warn", "dask"), ("ok", "distributed")]


@pytest.mark.parametrize(("is_direct", "level"), [(True, "ok"), (False, "warn"), (None, "ok")])
def test_a_connection_is_only_blamed_if_a_worker_answers(is_direct, level):
    found = diagnose_connection("scheduler at tcp://s:1", is_direct=is_direct)
    assert (found.level, bool(found.advice)) == (level, level == "warn")
    assert found.finding.startswith("scheduler at tcp://s:1")


def test_another_minor_versiondiagnose_python_must_be_mended():
    found = diagnose_python("3.11.7", {"tcp://a:1": "3.9"}, {})
    assert (found.level, found.subject) == ("fail", "python")
    assert "3.9 on 1 workers, tcp://a:1 for one" in found.finding
    assert diagnose_python("3.11.7", {}, {"a": {"python": "3.11.9"}}).finding == (
        "3.11.7 (and 3.11.9, which fits)"
    )


def worker(number, **more):
    address = f"tcp://{number}:1"
    return WorkerCapacity(address=address, host=f"host{number}", **{"nanny": True, **more})


def test_workers_that_hang_or_have_no_memory_or_no_nanny_arename_some():
    workers = [worker(1), worker(2, status="paused"), worker(3, nanny=False)]
    found = list(diagnose_workers(workers, {"tcp://1:1"}))
    assert [(one.level, one.finding) for one in found] == [
        ("fail", "1 of 3 do not answer: tcp://1:1"),
        ("warn", "paused for lack of memory: tcp://2:1"),
        ("warn", "1 without a nanny: tcp://3:1"),
    ]
    assert all(one.advice for one in found)
    [none] = diagnose_workers([], set())
    assert (none.level, none.finding) == ("warn", "there are none")
    [healthy] = diagnose_workers([worker(1), worker(2)], set())
    assert healthy.finding == "2 on 2 hosts"


def test_resources_are_added_up_and_full_workersname_some():
    some = [
        worker(1, nthreads=4, memory_limit=2**31, memory=2**31, resources={"CPU": 4}),
        worker(2, nthreads=2, resources={"GPU": 1}, memory_limit=2**30),
    ]
    found = list(diagnose_resources(some))
    assert [one.level for one in found] == ["ok", "ok", "warn"]
    assert found[0].finding == "CPU 6, memory 3.0 GiB, GPU 1"
    assert "1 of 2 workers declare no CPU" in found[1].finding
    assert "tcp://1:1" in found[2].finding
    # That it is paused says it already.
    paused = worker(1, memory_limit=2**31, memory=2**31, resources={"CPU": 1}, status="paused")
    assert [one.level for one in diagnose_resources([paused])] == ["ok"]


def test_a_storage_that_hosts_do_not_share_is_a_warning_and_a_broken_one_a_failure():
    answers = {"a": True, "b": False, "c": "no permission", "d": True}
    found = list(diagnose_shared_storage(Storage("/shared"), answers))
    assert [(one.level, one.finding) for one in found] == [
        ("fail", "c: no permission"),
        ("warn", "/shared is another directory on b"),
        ("ok", "2 hosts read and write the same"),
    ]
