"""The plugin that shares a cluster, with a stand-in for the scheduler and its clock."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from sharing_kit import CPU, Scheduler, demand

from dasktune.cluster.sharing.lease_records import LeaseRecords
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME, SharePlugin

NOTHING: dict[str, Any] = {"over": ([], 0.0), "demand": None}


def test_the_summary_has_what_each_experiment_holds_is_due_and_waits_for() -> None:
    scheduler = Scheduler(x=2, y=2)
    # Another program uses one CPU.
    scheduler.workers["y"].used_resources["CPU"] = 1.0
    scheduler.read("a", weight=2.0)
    scheduler.hold("a", "x", 1)
    facts = {"name": "A", "weight": 2.0, "priority": 0.0, "group": "", "held": {"CPU": 1}}
    [alone] = scheduler.plugin.summary()["experiments"]
    assert alone == {**facts, "share": 1 / 3, "due": None, "waiting": 0, "waiting_s": None}
    scheduler.hold("a", "x", 2)
    scheduler.hold("a", "y", 3)
    scheduler.read("b", priority=-1)
    scheduler.advance(1)
    scheduler.read("a", waits=8, weight=2.0)
    scheduler.read("b", waits=3, priority=-1)
    scheduler.advance(4)
    scheduler.read("a", waits=7, weight=2.0)
    summary = scheduler.plugin.summary()
    assert summary["totals"] == {"CPU": 3.0}
    first, second = summary["experiments"]
    assert first == {**facts, "held": {"CPU": 3}, "share": 1, "due": 1, "waiting": 7, "waiting_s": 4}
    assert (second["held"], second["due"], second["waiting"]) == ({}, 0, 3)
    # A driver that has been silent requests nothing, and is not listed if it holds nothing.
    scheduler.advance(6)
    [silent] = scheduler.plugin.summary()["experiments"]
    assert (silent["name"], silent["waiting"], silent["waiting_s"]) == ("A", 0, None)


def test_the_answer_to_each_experiment_has_the_shares_of_all() -> None:
    scheduler = Scheduler(x=4)
    scheduler.read("a", waits=3)
    for number in range(4):
        scheduler.hold("a", "x", number)
    answer = scheduler.read("b", waits=2)["shares"]
    assert answer["totals"] == {"CPU": 4}
    first, second = answer["experiments"]
    assert (first["name"], first["held"], first["share"], first["is_own"]) == ("A", {"CPU": 4}, 1, False)
    assert (second["name"], second["waiting"], second["due"], second["is_own"]) == ("B", 2, 0.5, True)
    # All drivers get the same summary for half a second.
    scheduler.hold("b", "x", 9)
    scheduler.advance(0.4)
    assert [one["held"] for one in scheduler.read("a", waits=3)["shares"]["experiments"]] == [{"CPU": 4}, {}]
    scheduler.advance(0.2)
    [_, second] = scheduler.read("a", waits=3)["shares"]["experiments"]
    assert second["held"] == {"CPU": 1}


def test_the_answer_says_where_and_for_how_long_an_experiment_holds_too_much(two: Scheduler) -> None:
    assert two.read("a", waits=8)["over"] == ([], 0.0)
    two.read("b", waits=8)
    two.advance(0.1)
    [_], seconds = two.read("a", waits=8)["over"]
    assert seconds == pytest.approx(0.1)
    two.advance(3)
    two.read("b", waits=8)
    # By now the plan gives the other experiment both seats for a while, but only one is due to it.
    assert two.read("a", waits=8)["over"] == (["x"], pytest.approx(3.1))
    assert two.read("b", waits=8)["over"] == ([], 0.0)
    # Its trial has ended: the time begins again.
    two.release(next(key for key, one in two.plugin.records.by_experiment["a"].items() if one.address == "x"))
    two.advance(0.1)
    assert two.read("a", waits=8)["over"] == ([], 0.0)
    two.plugin.note("b", None)
    assert two.read("a", waits=8)["over"] == ([], 0.0)


def test_an_answer_lists_the_largest_experiments_and_the_one_that_asks() -> None:
    scheduler = Scheduler(x=40)
    for number in range(30):
        scheduler.read(f"e{number:02}")
        scheduler.hold(f"e{number:02}", "x", needs={"CPU": 1 + number / 100})
    scheduler.advance(1)
    listed = scheduler.read("e00")["shares"]["experiments"]
    assert [one["name"] for one in listed] == [*(f"E{number}" for number in range(29, 10, -1)), "E00"]
    assert [one["name"] for one in listed if one["is_own"]] == ["E00"]


def test_experiments_of_two_protocols_do_each_other_no_harm() -> None:
    scheduler = Scheduler(x=2, y=2)
    new, old = scheduler.plugin, SharePlugin(timer=lambda: scheduler.now, stopwatch=lambda: 0.0)
    old.name, old.scheduler = "dasktune-share-2", scheduler
    both = SimpleNamespace(transition=lambda *a, **k: [one.transition(*a, **k) for one in (new, old)])
    # Each driver calls the plugin of its own version; the scheduler calls both at each transition.
    for name, plugin in (("a", new), ("b", old), ("c", new), ("d", old)):
        scheduler.plugin = plugin
        scheduler.read(name, waits=8)
        scheduler.plugin = both
        scheduler.hold(name, "x" if name in "ab" else "y")
    scheduler.advance(1)
    for plugin, names in ((new, "ac"), (old, "bd")):
        scheduler.plugin = plugin
        for name in names:
            scheduler.read(name, waits=8)
        scheduler.advance(1)
        answers = [scheduler.read(name, waits=8) for name in names]
        # What the experiments of the other version hold counts as used by another program, and
        # nothing is withheld from the experiments of this one: each has its share of the rest.
        assert [one["others"] for one in answers] == [1, 1]
        assert [one["shares"]["totals"] for one in answers] == [{"CPU": 2}] * 2
        assert [one["withheld"] for one in answers] == [{}, {}]


@pytest.fixture
def two() -> Scheduler:
    """Two workers with a CPU each, both held by the experiment "a", which wants more."""
    scheduler = Scheduler(x=1, y=1)
    scheduler.read("a", waits=8)
    scheduler.hold("a", "x", 1)
    scheduler.hold("a", "y", 2)
    return scheduler


def test_tasks_that_wait_for_a_worker_leave_the_shares_of_the_others_as_they_are() -> None:
    scheduler = Scheduler(x=4, y=4)
    # Dask books what a thousand tasks of another program request, though only four of them run.
    scheduler.workers["x"].used_resources["CPU"] = 1000.0
    # A trial has overtaken them.
    scheduler.hold("a", "x")
    for _ in range(3):
        scheduler.advance(1)
        first, second = (scheduler.read(name, waits=8) for name in "ab")
    assert second["shares"]["totals"] == {"CPU": 5}
    assert [(one["name"], one["due"]) for one in second["shares"]["experiments"]] == [("A", 0.5), ("B", 0.5)]
    assert scheduler.plugin.experiments["a"].held == 0.2
    assert scheduler.plugin.plan is not None
    granted = scheduler.plugin.plan.granted
    assert granted["a"]["x"] == {"CPU": 1}
    assert (granted["a"]["y"]["CPU"], granted["b"]["y"]["CPU"]) in [(1, 3), (2, 2)]
    assert first["over"] == ([], 0.0)


def test_a_plan_is_made_while_tasks_wait_for_each_cpu_of_a_cluster_with_gpus(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 4, gpus=["0", "1"])
    scheduler.workers["x"].used_resources["CPU"] = 1000.0
    wanted = [([{"GPU": 1.0, "CPU": 1.0}], "PACK", 4)]
    for _ in range(2):
        scheduler.advance(1)
        answers = [scheduler.read(name, requests=wanted) for name in "ab"]
    assert [one["others"] for one in answers] == [1, 1]
    assert caplog.messages == []


def test_leases_without_gpus_leave_nothing_behind_and_neither_do_workers() -> None:
    scheduler = Scheduler()
    for number in range(3):
        scheduler.add_worker(f"w{number}", 4, memory_limit=8)
        scheduler.release(scheduler.hold("a", f"w{number}", memory=2))
        del scheduler.workers[f"w{number}"]
    assert scheduler.plugin.records.__dict__ == LeaseRecords().__dict__


def test_one_experiment_alone_causes_no_plan_and_no_timer(two: Scheduler) -> None:
    for _ in range(5):
        two.advance(1)
        assert two.read("a", waits=8) == {"others": 0, "shares": None, **NOTHING, "withheld": {}}
    assert two.plugin.plans == 0
    assert two.timers == []


def test_an_experiment_that_joins_gets_the_next_place(two: Scheduler) -> None:
    answer = two.read("b", waits=8)
    assert answer["others"] == 1
    assert answer["withheld"] == {}  # the other experiment uses both CPUs
    # The first experiment is notified. It reads that one of its places is not for it any more.
    assert two.advance(0) == ["a"]
    given = two.read("a", waits=8)
    assert given["withheld"] == {"x": 1} or given["withheld"] == {"y": 1}
    (address,) = given["withheld"]
    # It releases that lease when its trial ends, and the second experiment is notified.
    key = next(
        key for key, lease in two.plugin.records.by_experiment["a"].items() if lease.address == address
    )
    two.release(key)
    assert two.advance(0.05) == ["b"]
    assert two.read("b", waits=8)["withheld"] == {}
    assert two.read("a", waits=8)["withheld"] == {address: 1}


def test_a_driver_is_notified_once_until_it_reads(two: Scheduler) -> None:
    two.read("b", waits=8)
    assert two.advance(0.1) == ["a"]
    two.release(next(iter(two.plugin.records.by_experiment["a"])))
    assert "a" not in two.advance(0.1)


def test_shares_follow_weights_over_time() -> None:
    scheduler = Scheduler(x=3)
    held: dict[str, list[str]] = {"a": [], "b": []}
    steps: dict[str, int] = {"a": 0, "b": 0}
    for step in range(400):
        scheduler.advance(0.1)
        for name in "ab":
            # Trials take 0.1 s, so every lease can be released at each step.
            free = scheduler.read(name, 9, weight=2.0 if name == "a" else 1.0)["withheld"].get("x", 0)
            used = scheduler.workers["x"].used_resources["CPU"]
            if used + free > 3 and held[name]:
                scheduler.release(held[name].pop())
            elif used + free < 3:
                held[name].append(scheduler.hold(name, "x", step))
            steps[name] += len(held[name])
    assert steps["a"] / (steps["a"] + steps["b"]) == pytest.approx(2 / 3, abs=0.05)


def test_what_is_held_between_two_plans_counts_although_no_plan_sees_it() -> None:
    # Plans are often made between two leases, when nothing is held.
    scheduler = Scheduler(x=1)
    for _ in range(8):
        scheduler.read("b", waits=8)
        scheduler.read("a", waits=8)
        lease = scheduler.hold("a", "x")
        scheduler.now += 0.3
        scheduler.release(lease)
        scheduler.now += 0.01
    assert scheduler.plugin.plan is not None
    one, other = (scheduler.plugin.experiments[name] for name in "ab")
    assert (one.held, other.held) == (0, 0)
    # Half of the time was due to each.
    assert one.lag < -0.9
    assert other.lag > 0.9


def test_room_that_is_not_used_is_not_reserved_for_long(two: Scheduler) -> None:
    two.read("b", waits=8)
    two.release(next(iter(two.plugin.records.by_experiment["a"])))
    two.advance(0.1)
    free = [address for address in "xy" if not two.workers[address].used_resources["CPU"]]
    assert list(two.read("a", waits=8)["withheld"]) == free
    # The second driver reads, but starts nothing: its trial lacks memory there.
    for _ in range(5):
        two.advance(0.6)
        two.read("b", waits=8)
    two.advance(0.6)
    assert free[0] not in two.read("a", waits=8)["withheld"]
    # After ten seconds it is tried again.
    for _ in range(12):
        two.advance(1)
        two.read("b", waits=8)
        last = two.read("a", waits=8)["withheld"]
    assert free[0] in last


def test_the_summary_has_the_groups_and_the_answers_to_drivers_have_not(two: Scheduler) -> None:
    # Drivers of earlier versions would not understand the answer.
    answer = two.read("b", waits=1, group="ann")
    assert answer["shares"]["experiments"]
    assert not any("group" in one for one in answer["shares"]["experiments"])
    assert [one["group"] for one in two.plugin.summary()["experiments"]] == ["", "ann"]


def test_the_answer_says_how_many_experiments_wait(two: Scheduler) -> None:
    # Those that wait share what they show to an adaptive cluster.
    two.read("b", waits=8)
    two.read("c")
    assert [two.read(name, waits=8)["demand"] for name in "ab"] == [(2, 2, 0), (2, 2, 1)]
    # One whose driver is silent counts no more.
    two.advance(6)
    assert two.read("b", waits=8)["demand"] == (2, 1, 0)


def test_room_that_was_freed_is_not_taken_back_before_it_is_used() -> None:
    scheduler = Scheduler(x=2)
    scheduler.read("a")
    leases = [scheduler.hold("a", "x", number) for number in range(2)]
    scheduler.read("b", waits=1)
    scheduler.advance(1)
    scheduler.release(leases[0])
    # No other trial of "a" waits at this moment: the one that has yielded does a moment later.
    assert scheduler.advance(0.1) == ["b"]
    assert scheduler.read("a", waits=1)["withheld"] == {"x": 1}
    lease = scheduler.hold("b", "x")
    scheduler.read("b")
    scheduler.release(lease)
    scheduler.advance(0.1)
    assert scheduler.read("a", waits=1)["withheld"] == {}


def pauses_of_reservation(two: Scheduler, seconds: int, **options: Any) -> list[float]:
    """Return for how long nothing was reserved for "b", each time, while it starts nothing."""
    begun, pauses = None, []
    for _ in range(2 * seconds):
        two.advance(0.5)
        two.read("b", waits=8, **options)
        is_reserved = bool(two.read("a", waits=8)["withheld"])
        if is_reserved and begun is not None:
            pauses.append(two.now - begun)
            begun = None
        elif not is_reserved and begun is None:
            begun = two.now
    return pauses


def test_room_that_is_not_used_again_and_again_is_reserved_more_and_more_seldom() -> None:
    # Trials of "a" would yield for nothing each time.
    two = Scheduler(x=1)
    two.read("a", waits=8)
    two.read("b", waits=8, priority=1)
    pauses = pauses_of_reservation(two, 700, priority=1)
    assert pauses[:6] == pytest.approx([10, 20, 40, 80, 160, 160], abs=1.5)
    # Once the room is used, the next pause is short.
    two.release(two.hold("b", "x"))
    assert pauses_of_reservation(two, 240, priority=1)[1] == pytest.approx(10, abs=1.5)


def test_other_trials_are_not_kept_waiting_for_room_that_the_last_ones_did_not_use() -> None:
    two = Scheduler(x=1)
    two.read("a", waits=8)
    two.read("b", waits=8, priority=1)
    pauses_of_reservation(two, 300, priority=1)
    smaller = {"requests": [([{"CPU": 0.5}], "PACK", 8)], "priority": 1}
    assert pauses_of_reservation(two, 240, **smaller)[1] == pytest.approx(10, abs=1.5)


def test_room_that_the_driver_has_not_read_of_stays_reserved(two: Scheduler) -> None:
    two.read("b", waits=8)
    two.release(next(iter(two.plugin.records.by_experiment["a"])))
    for _ in range(4):
        two.advance(0.9)
        last = two.read("a", waits=8)["withheld"]
    assert last
    # Then its driver counts as silent, and requests nothing.
    two.advance(3)
    assert two.read("a", waits=8)["withheld"] == {}


def test_the_further_workers_of_a_trial_stay_free_until_it_holds_them(two: Scheduler) -> None:
    pair = {"requests": [([CPU, CPU], "STRICT_SPREAD", 1)]}
    for key in list(two.plugin.records.by_experiment["a"]):
        two.release(key)
    two.read("b", priority=1, **pair)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {"x": 1, "y": 1}
    first = two.hold("b", "x", 1)
    # By its last report it still waits for the trial that it is starting. Now it waits for none.
    two.read("b", priority=1)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {"y": 1}
    second = two.hold("b", "y", 1)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {}
    two.release(second)
    two.release(first)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {}


def test_a_further_worker_that_is_not_acquired_is_free_again(two: Scheduler) -> None:
    pair = {"requests": [([CPU, CPU], "STRICT_SPREAD", 1)]}
    for key in list(two.plugin.records.by_experiment["a"]):
        two.release(key)
    two.read("b", priority=1, **pair)
    two.hold("b", "x", 1)
    two.read("b", priority=1)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {"y": 1}
    two.advance(2.5)
    assert two.read("a", waits=8)["withheld"] == {}


def test_room_for_ranks_is_reserved_on_one_host() -> None:
    cluster = Scheduler(**{f"tcp://{host}:{port}": 1 for host in "ab" for port in (1, 2)})
    pair = {"requests": [([CPU, CPU], "PACK", 1)], "layouts": [(True, 2)], "priority": 1}
    held = {address: cluster.hold("a", address, number) for number, address in enumerate(cluster.workers)}
    cluster.read("a", waits=8)
    cluster.read("b", **pair)
    cluster.advance(0.1)
    # A worker ends its trial. The pair waits for the other one of its host, and not for any.
    cluster.release(held["tcp://a:1"])
    cluster.advance(0.1)
    both = {"tcp://a:1": 1, "tcp://a:2": 1}
    assert cluster.read("a", waits=8)["withheld"] == both
    cluster.release(held["tcp://b:1"])
    cluster.advance(0.1)
    assert cluster.read("a", waits=8)["withheld"] == both
    # A driver of an earlier version does not say that hosts count.
    del pair["layouts"]
    cluster.read("b", **pair)
    cluster.advance(1)
    assert cluster.read("a", waits=8)["withheld"]


def test_a_killed_driver_is_forgotten_with_its_client(two: Scheduler) -> None:
    two.read("b", waits=8)
    assert two.read("a", waits=8)["withheld"]
    two.plugin.remove_client(two, "client of b")
    two.advance(0.1)
    assert two.read("a", waits=8) == {"others": 0, "shares": None, **NOTHING, "withheld": {}}


def test_a_silent_driver_is_forgotten_unless_it_holds_something(two: Scheduler) -> None:
    two.read("b")
    two.now += 100
    assert two.read("b")["others"] == 1  # the first experiment holds leases
    two.plugin.restart(two)
    assert two.read("b")["others"] == 0
    assert list(two.plugin.experiments) == ["b"]


def test_an_experiment_that_ends_says_so(two: Scheduler) -> None:
    two.read("b", waits=8)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"]
    two.plugin.note("b", None)
    two.plugin.note("never heard of", None)
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"] == {}


def test_room_that_an_experiment_did_not_use_before_it_was_alone_is_reserved_later(two: Scheduler) -> None:
    two.read("b", waits=8, priority=1, closed=["y"])
    two.release("a-actor-1-lease-x")
    two.advance(0.1)
    assert two.read("a")["withheld"] == {"x": 1}
    # The other one ends before the driver has read of the room, and nothing is limited for a while.
    two.release("a-actor-2-lease-y")
    two.plugin.note("a", None)
    for _ in range(5):
        two.advance(1)
        assert two.read("b", waits=8, priority=1, closed=["y"])["others"] == 0
    # Another one joins, and the two seconds for the room begin again.
    two.read("c", waits=8)
    two.advance(0.1)
    two.read("b", waits=8, priority=1, closed=["y"])
    assert two.read("c", waits=8)["withheld"] == {"x": 1}


def test_the_begin_of_waiting_between_two_readings_makes_a_plan(two: Scheduler) -> None:
    two.read("b")
    two.advance(0.1)
    two.read("a", waits=8)
    plans = two.plugin.plans
    two.plugin.note("b", demand("b", 3))
    assert two.advance(0.1) == ["a"]
    assert two.plugin.plans == plans + 1


def test_plans_take_a_fiftieth_of_the_time_at_most(two: Scheduler) -> None:
    clock = iter(range(100))
    # Each plan takes a second.
    two.stopwatch = lambda: float(next(clock))
    two.read("b", waits=8)
    assert two.plugin.plans == 1
    two.release(next(iter(two.plugin.records.by_experiment["a"])))
    for _ in range(4):
        two.advance(10)
        two.read("b", waits=8)
        assert two.plugin.plans == 1
    two.advance(10)
    assert two.plugin.plans == 2


def test_leases_that_existed_before_the_plugin_count(two: Scheduler) -> None:
    again = SharePlugin()
    two.tasks["waiting-lease-1"] = SimpleNamespace(processing_on=None)
    for work in [again.start(two)]:
        with pytest.raises(StopIteration):
            work.send(None)
    assert again.records.by_experiment == two.plugin.records.by_experiment
    assert again.name == PLUGIN_NAME


def test_tasks_of_others_are_not_leases(two: Scheduler) -> None:
    before = {name: dict(leases) for name, leases in two.plugin.records.by_experiment.items()}
    two.plugin.transition(("x-lease-y", 1), "waiting", "processing")
    two.plugin.transition("sum", "waiting", "processing")
    two.plugin.transition("dasktune-gone-actor-1-lease-2", "processing", "released")
    assert two.plugin.records.by_experiment == before


def test_other_programs_use_comes_first(two: Scheduler) -> None:
    # An experiment of another version: its lease is known, the experiment is not.
    two.release(next(iter(two.plugin.records.by_experiment["a"])))
    two.hold("older", "x", 7)
    two.read("b", waits=8)
    two.advance(0.1)
    assert two.plugin.plan is not None
    assert two.plugin.plan.left["x"] == {"CPU": 0}


def test_a_worker_that_joins_is_free_for_all_until_the_next_plan(two: Scheduler) -> None:
    two.read("b", waits=8)
    two.add_worker("z", 1)
    assert not two.plugin.limits("a", two.workers["z"], {}).get("withheld")
    two.plugin.add_worker(two, "z")
    two.advance(0.1)
    assert two.read("a", waits=8)["withheld"]["z"] == 1
    two.plugin.remove_worker(two, "z", stimulus_id="s")
    del two.workers["z"]
    two.advance(0.1)
    assert "z" not in two.read("a", waits=8)["withheld"]


def test_an_experiment_that_is_alone_is_not_limited() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, gpus=["4"], memory_limit=8000)
    scheduler.read("a", waits=8)
    scheduler.hold("a", "x", 1, HALF, devices=[["4"]])
    assert scheduler.plugin.limits("a", scheduler.workers["x"], {"CPU": 2}) == {}


def test_a_worker_that_an_experiment_cannot_use_is_not_reserved_for_it(two: Scheduler) -> None:
    two.read("b", waits=8, closed=["x"])
    two.advance(0.1)
    assert list(two.read("a", waits=8)["withheld"]) in (["y"], [])
    assert "x" not in two.read("a", waits=8)["withheld"]


def limits(scheduler: Scheduler, name: str, address: str = "x") -> dict[str, Any]:
    """Return what a driver reads of a worker besides Dask's own records."""
    worker = scheduler.workers[address]
    leases = scheduler.plugin.records.by_experiment.get(name, {}).values()
    used = {
        kind: amount - sum(one.needs.get(kind, 0) for one in leases if one.address == address)
        for kind, amount in worker.used_resources.items()
    }
    return {"used": used, "withheld": {}, "gpu_loads": ()} | scheduler.plugin.limits(name, worker, used)


HALF = {"GPU": 0.5}


def test_a_whole_gpu_waits_for_one_device_and_the_others_keep_off_it() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, gpus=["4", "7"])
    halves = {"requests": [([HALF], "PACK", 8)]}
    scheduler.read("a", **halves)
    first = scheduler.hold("a", "x", 1, HALF, devices=[["4"]])
    second = scheduler.hold("a", "x", 2, HALF, devices=[["7"]])
    assert limits(scheduler, "b")["gpu_loads"] == (0.5, 0.5)
    assert not any(limits(scheduler, "a")["gpu_loads"])
    scheduler.read("b", requests=[([{"GPU": 1}], "PACK", 1)])
    scheduler.advance(0.1)
    # One device is reserved for "b", and the free half of the other one is left to "a".
    scheduler.read("a", **halves)
    assert sorted(limits(scheduler, "a")["gpu_loads"]) == [0, 1]
    reserved = limits(scheduler, "a")["gpu_loads"].index(1)
    assert scheduler.plugin.plan is not None
    assert scheduler.plugin.plan.startable["b"] == set()
    scheduler.release([first, second][reserved])
    # Two free halves would be enough by their sum, which is not free on one device before.
    assert "b" in scheduler.advance(0.1)
    assert scheduler.plugin.plan.startable["b"] == {"x"}
    assert limits(scheduler, "b")["gpu_loads"][reserved] == 0
    assert limits(scheduler, "a")["gpu_loads"][reserved] == 1


def test_gpus_that_an_experiment_of_another_version_holds_are_not_planned() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, gpus=["0", "1"])
    scheduler.read("a", requests=[([{"GPU": 1}], "PACK", 8)])
    scheduler.hold("older", "x", 7, HALF, devices=[["1"]])
    scheduler.read("b", requests=[([{"GPU": 1}], "PACK", 8)])
    scheduler.advance(0.1)
    assert scheduler.plugin.plan is not None
    granted = scheduler.plugin.plan.granted
    # Half of the second GPU is in use by that one.
    assert [one for one in granted.values() if one] == [{"x": {"GPU": 1, "GPU/0": 1}}]


def test_bundles_of_one_lease_and_gpus_that_share_a_device_are_distinct() -> None:
    scheduler = Scheduler()
    # Three GPUs are declared on two devices.
    scheduler.add_worker("x", 8, gpus=["4", "5", "4"])
    scheduler.hold("a", "x", 1, {"GPU": 1.5}, devices=[["4"], ["4"]])
    assert limits(scheduler, "b")["gpu_loads"] == (0.75, 0, 0.75)
    key = scheduler.hold("a", "x", 2, {"GPU": 1}, devices=[["5"]])
    assert limits(scheduler, "b")["gpu_loads"] == (0.75, 1, 0.75)
    assert not any(limits(scheduler, "a")["gpu_loads"])
    scheduler.release(key)
    assert limits(scheduler, "b")["gpu_loads"] == (0.75, 0, 0.75)


def test_the_gpus_of_leases_that_existed_before_the_plugin_count() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, gpus=["0", "1"])
    scheduler.hold("a", "x", 1, HALF, devices=[["1"]])
    scheduler.plugin = SharePlugin(timer=lambda: scheduler.now)
    for work in [scheduler.plugin.start(scheduler)]:
        with pytest.raises(StopIteration):
            work.send(None)
    assert limits(scheduler, "b")["gpu_loads"] == (0, 0.5)


def test_events_of_others_are_no_grants() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, gpus=["0"])
    key = scheduler.hold("a", "x", 1, HALF)
    for topic, event in (
        ("a", "lease-granted"),
        ("a", {"kind": "reports-ready"}),
        ("b", {"kind": "lease-granted", "lease": key, "devices": [["0"]]}),
        ("a", {"kind": "lease-granted", "lease": "gone", "devices": [["0"]]}),
        ("a", {"kind": "lease-granted", "lease": key, "devices": []}),
    ):
        scheduler.plugin.log_event(topic, event)
    assert limits(scheduler, "b")["gpu_loads"] == (0,)


def test_memory_that_other_experiments_hold_is_used_and_shared() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 8, memory_limit=8000)
    scheduler.read("a")
    lease = scheduler.hold("a", "x", 1, memory=6000)
    assert limits(scheduler, "b")["used"] == {"CPU": 1, "memory": 6000}
    assert limits(scheduler, "a")["used"] == {"CPU": 0}
    large = {"requests": [([{"CPU": 1, "memory": 4000}], "PACK", 1)], "priority": 1}
    answer = scheduler.read("b", **large)
    assert answer["shares"]["totals"] == {"CPU": 8, "memory": 8000}
    assert answer["shares"]["experiments"][0]["share"] == 0.75
    scheduler.advance(0.1)
    scheduler.read("a", requests=[([{"CPU": 1, "memory": 6000}], "PACK", 1)])
    # What "b" waits for is not for the next trial of "a".
    assert limits(scheduler, "a")["withheld"] == {"CPU": 1, "memory": 4000}
    scheduler.release(lease)
    assert scheduler.advance(0.1) == ["b"]


def test_without_a_limit_of_memory_no_worker_is_full() -> None:
    scheduler = Scheduler()
    scheduler.add_worker("x", 1)
    scheduler.read("a", requests=[([{"CPU": 1, "memory": 10**15}], "PACK", 3)])
    scheduler.hold("a", "x", 1, memory=10**15)
    answer = scheduler.read("b", requests=[([{"CPU": 1, "memory": 10**15}], "PACK", 3)], priority=1)
    assert answer["shares"]["totals"] == {"CPU": 1}
    assert limits(scheduler, "b")["withheld"] == {}
    assert limits(scheduler, "a")["withheld"] == {"CPU": 1}


def test_administrators_limit_weights_and_classes(two: Scheduler) -> None:
    limits = {"dasktune.sharing.max-weight": 2, "dasktune.sharing.max-priority": 0}
    with dask.config.set(limits):
        two.read("b", waits=8, weight=1e9, priority=5)
    one = two.plugin.experiments["b"]
    assert (one.weight, one.priority) == (2, 0)


def test_administrators_limit_weights_and_classes_by_variables_of_the_environment(two: Scheduler) -> None:
    names = {"DASK_DASKTUNE__SHARING__MAX_WEIGHT": "2", "DASK_DASKTUNE__SHARING__MAX_PRIORITY": "0"}
    with dask.config.set(dask.config.collect_env(names)):
        two.read("b", waits=8, weight=1e9, priority=5)
    one = two.plugin.experiments["b"]
    assert (one.weight, one.priority) == (2, 0)


def test_experiments_of_a_group_have_the_share_that_the_administrator_gives_it() -> None:
    scheduler = Scheduler(x=8)
    scheduler.read("a", waits=8, group="g")
    scheduler.read("b", waits=8, group="g")

    def due() -> list[float]:
        scheduler.advance(1)
        scheduler.read("a", waits=8, group="g")
        scheduler.read("b", waits=8, group="g")
        scheduler.advance(1)
        facts = scheduler.read("c", waits=8)["shares"]["experiments"]
        return [one["due"] for one in sorted(facts, key=lambda one: one["name"])]

    assert due() == [0.25, 0.25, 0.5]
    with dask.config.set({"dasktune.sharing.groups": {"g": 3}}):
        assert due() == pytest.approx([0.375, 0.375, 0.25])


def test_administrators_can_turn_sharing_off(two: Scheduler) -> None:
    with dask.config.set({"dasktune.sharing.enabled": False}):
        two.read("b", waits=8)
        two.advance(0.1)
        assert two.read("a", waits=8)["withheld"] == {}


def test_an_error_disturbs_neither_the_scheduler_nor_the_driver(
    two: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    two.read("b", waits=8)
    two.advance(1)
    two.plan = lambda *_: 1 / 0
    with caplog.at_level(logging.ERROR, "distributed.dasktune"):
        assert two.read("b", waits=8) == {"others": 0, "shares": None, **NOTHING, "withheld": {}}
        two.hold("b", "x", 9)
        two.advance(1)
    assert [record.message for record in caplog.records] == [
        "the cluster could not be shared between experiments"
    ] * 2
