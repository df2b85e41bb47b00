"""Who gets how much; the numbers are those of Ray Tune unless a test says otherwise."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from resizing_kit import ONE_CPU, Stage, cpus

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    DistributeResources,
    DistributeResourcesToTopJob,
    MultiObjectiveASHAScheduler,
    ResourceChangingScheduler,
)
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory
from dasktune.trial.status import TrialStatus

EIGHT = {"CPU": 8, "GPU": 8, "memory": inf}
BOTH = {"CPU": 2, "GPU": 2}


def grown(kind: str, base: Any, more: Any, times: int) -> PlacementGroupFactory:
    """What a base is after so many increments, in one bundle or in further ones."""
    if kind == "bundles":
        return PlacementGroupFactory([*base, *[more] * times])
    names = {**base[0], **more}
    return PlacementGroupFactory([{name: base[0].get(name, 0) + times * more.get(name, 0) for name in names}])


@pytest.mark.parametrize("kind", ["one", "bundles"])
def test_as_others_end_each_gets_an_even_share(kind: str):
    stage = Stage(DistributeResources(add_bundles=kind == "bundles"), EIGHT)
    first, second, third, fourth = stage.trials
    asked = [grown(kind, [{"CPU": 1}], {"CPU": 1}, times) for times in range(8)]
    assert stage.resize(first) == asked[1]
    assert stage.resize(second) == asked[1]
    stage.end(fourth)
    assert stage.resize(first) == asked[2]
    stage.end(third)
    assert stage.resize(first) == asked[3]
    stage.end(second)
    assert stage.resize(first) == asked[7]
    assert stage.resize(first) is None


@pytest.mark.parametrize(
    ("kind", "base"),
    [("one", [BOTH]), ("bundles", [BOTH]), ("bundles", [{}, BOTH])],
)
def test_an_increment_may_be_of_several_kinds(kind: str, base: Any):
    function = DistributeResources(kind == "bundles", increase_by=BOTH)
    stage = Stage(function, EIGHT, base=PlacementGroupFactory(base))
    first, second, third, fourth = stage.trials
    assert stage.resize(first) is None
    stage.end(fourth)
    assert stage.resize(first) == grown(kind, base, BOTH, 1)
    stage.end(third)
    assert stage.resize(second) == grown(kind, base, BOTH, 1)
    stage.end(second)
    assert stage.resize(first) == grown(kind, base, BOTH, 3)


@pytest.mark.parametrize("function", [DistributeResources, DistributeResourcesToTopJob])
@pytest.mark.parametrize(
    ("kind", "base"), [("one", [{"CPU": 1, "GPU": 2}]), ("bundles", [{"CPU": 1}, {"GPU": 2}])]
)
def test_none_gets_more_increments_than_allowed(function: Any, kind: str, base: Any):
    more = {"GPU": 2}
    stage = Stage(
        function(add_bundles=kind == "bundles", increase_by=more, increase_by_times=2),
        EIGHT,
        base=PlacementGroupFactory(base),
    )
    first, second, third, fourth = stage.trials
    assert stage.resize(first, acc=1.0) is None
    stage.end(fourth)
    assert stage.resize(first, acc=1.0) == grown(kind, base, more, 1)
    stage.end(third)
    assert stage.resize(second, acc=1.1) == grown(kind, base, more, 1)
    stage.end(second)
    assert stage.resize(first, acc=1.2) == grown(kind, base, more, 2)
    assert stage.resize(first, acc=1.3) is None


@pytest.mark.parametrize("function", [DistributeResources, DistributeResourcesToTopJob])
def test_who_has_more_than_there_is_gives_it_up_but_for_its_base(function: Any):
    stage = Stage(function(increase_by={"GPU": 2}), EIGHT, base=cpus(1), trials=0)
    base = PlacementGroupFactory([{"CPU": 1, "GPU": 2}])
    large = stage.add(PlacementGroupFactory([{"CPU": 1, "GPU": 4}]))
    large.first_resources = base
    for _ in range(2):
        stage.add(base)
    stage.wait(stage.add(base))
    assert stage.resize(large, acc=1.0) == base
    stage.workers["w0"] = {"CPU": 8, "GPU": 2}
    assert stage.resize(large, acc=1.0) is None


def test_all_that_is_free_goes_to_the_best():
    stage = Stage(DistributeResourcesToTopJob(), EIGHT)
    first, second, third, fourth = stage.trials
    for trial, acc in zip(stage.trials, (1.0, 0.9, 0.8, 0.7), strict=True):
        trial.history.append({"training_iteration": 3, "acc": acc})
    assert stage.resize(second, acc=0.9) is None
    assert stage.resize(first, acc=1.0) == cpus(5)
    # There is no more to have; and what the best has had it keeps.
    assert stage.resize(second, acc=1.1) is None
    stage.end(fourth)
    assert stage.resize(second, acc=1.1) == cpus(2)
    stage.end(third)
    assert stage.resize(first, acc=1.2) == cpus(6)
    stage.end(second)
    assert stage.resize(first, acc=1.2) == cpus(8)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("told", [{}, {"loss": nan}, {"loss": "diverged"}, {"loss": None}])
def test_who_has_reported_nothing_is_never_the_best(mode: Any, told: Any):
    stage = Stage(DistributeResourcesToTopJob(metric="loss", mode=mode), EIGHT, trials=2)
    silent, other = stage.trials
    assert stage.resize(silent, **told) is None
    assert stage.resize(other, loss=7.0) == cpus(7)


def test_one_that_failed_holds_nothing_any_more():
    stage = Stage(DistributeResources(), EIGHT)
    for trial in stage.trials[1:]:
        stage.end(trial, TrialStatus.ERROR)
    assert stage.view.get_live_trials() == stage.trials[:1]
    assert stage.resize(stage.trials[0]) == cpus(8)


def test_a_function_that_two_experiments_share_takes_nothing_from_one_to_the_other():
    function = DistributeResourcesToTopJob()
    schedulers = [ResourceChangingScheduler(None, function) for _ in range(2)]
    schedulers[0].set_search_properties("loss", "min")
    schedulers[1].set_search_properties("acc", "max")
    assert [(one.metric, one.mode) for one in schedulers] == [("loss", "min"), ("acc", "max")]
    assert (function.metric, function.mode) == (None, None)
    default = [ResourceChangingScheduler().resources_allocation_function for _ in range(2)]
    assert vars(default[0]) == vars(DistributeResources())


def test_what_is_not_evenly_divisible_stays_where_it_is():
    """Ray Tune gives it to the first trial that reports, and never takes it back."""
    stage = Stage(DistributeResources(), EIGHT, trials=3)
    first, second, third = stage.trials
    assert [stage.resize(one) for one in (third, second, first)] == [cpus(3), cpus(3), cpus(2)]
    assert [stage.resize(one) for one in (third, second, first)] == [None] * 3
    new_one = stage.add()
    assert stage.resize(new_one) is None
    assert stage.resize(third) == cpus(2)
    assert stage.resize(new_one) is None
    assert stage.resize(second) == cpus(2)
    assert stage.resize(new_one) == cpus(2)
    assert [stage.resize(one) for one in stage.trials] == [None] * 3


def test_those_that_wait_are_given_room_but_not_those_that_may_not_run():
    stage = Stage(DistributeResources(), EIGHT, trials=8, limit=2)
    first, *waiting, second = stage.trials
    for trial in waiting:
        stage.wait(trial)
    assert stage.resize(first) == cpus(4)
    assert stage.resize(second) == cpus(4)
    unlimited = Stage(DistributeResources(), EIGHT, trials=8)
    first, *waiting = unlimited.trials
    for trial in waiting:
        unlimited.wait(trial)
    assert unlimited.resize(first) is None


def test_paused_trials_leave_what_they_had_to_the_others():
    stage = Stage(DistributeResources(), EIGHT, trials=2)
    first, second = stage.trials
    stage.paused[second.trial_id] = stage.active.pop(second.trial_id)
    second.status = TrialStatus.PAUSED
    assert stage.view.get_live_trials() == [first, second]
    assert stage.resize(first) == cpus(8)


def test_workers_are_not_one_large_machine():
    """Ray Tune asks for more than any node has, and the trial never runs again."""
    stage = Stage(DistributeResources(), {"CPU": 4}, {"CPU": 4}, trials=1)
    assert stage.resize(stage.trials[0]) == cpus(4)
    assert stage.resize(stage.trials[0]) is None
    spread = Stage(DistributeResources(add_bundles=True), {"CPU": 4}, {"CPU": 4}, trials=1)
    assert spread.resize(spread.trials[0]) == PlacementGroupFactory([{"CPU": 1}] * 8)


def test_what_is_in_pieces_is_not_promised():
    stage = Stage(DistributeResources(), {"CPU": 4}, {"CPU": 4}, trials=2)
    first, second = stage.trials
    other = stage.add(cpus(3), worker="w1")
    other.first_resources = ONE_CPU
    assert stage.resize(first) == cpus(3)
    # A CPU is free on the other worker only.
    assert stage.resize(second) is None


def test_trials_may_have_asked_for_different_things():
    stage = Stage(DistributeResources(), {"CPU": 16, "GPU": 5}, trials=0)
    small, large, with_gpu, with_half = (
        stage.add(PlacementGroupFactory([bundle]))
        for bundle in ({"CPU": 1}, {"CPU": 4}, {"CPU": 1, "GPU": 1}, {"CPU": 2, "GPU": 0.5})
    )
    assert stage.resize(with_gpu) == PlacementGroupFactory([{"CPU": 1, "GPU": 4}])
    assert stage.resize(small) == cpus(4)
    assert stage.resize(with_half) == PlacementGroupFactory([{"CPU": 5, "GPU": 0.5}])
    assert stage.resize(large) == cpus(6)


def test_no_trial_asks_for_one_gpu_and_a_half():
    function = DistributeResources(increase_by={"GPU": 0.5})
    stage = Stage(function, {"CPU": 4, "GPU": 2}, base=cpus(1), trials=0)
    trial = stage.add(PlacementGroupFactory([{"CPU": 1, "GPU": 0.5}]))
    assert stage.resize(trial) == PlacementGroupFactory([{"CPU": 1, "GPU": 2}])
    stage.workers["w0"]["GPU"] = 1.5
    assert stage.resize(trial) == PlacementGroupFactory([{"CPU": 1, "GPU": 1}])


def test_the_first_bundle_that_asks_for_something_grows():
    stage = Stage(DistributeResources(), EIGHT, trials=0)
    trial = stage.add(PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 2}], "SPREAD"))
    assert stage.resize(trial) == PlacementGroupFactory([{}, {"CPU": 6}, {"CPU": 2}], "SPREAD")
    bare = Stage(DistributeResources(add_bundles=True), {"CPU": 2}, trials=0)
    trial = bare.add(PlacementGroupFactory([{"CPU": 1}, {}]))
    assert bare.resize(trial) == PlacementGroupFactory([{"CPU": 1}, {}, {"CPU": 1}])
    nothing = Stage(DistributeResources(), {"CPU": 2}, trials=0)
    assert nothing.resize(nothing.add(PlacementGroupFactory([{}]))) == cpus(2)


def test_what_is_reserved_is_left_alone():
    stage = Stage(DistributeResources(reserve_resources={"CPU": 5}), EIGHT, trials=2)
    assert stage.resize(stage.trials[0]) == cpus(2)
    assert stage.resize(stage.trials[1]) is None


@pytest.mark.parametrize("more", [{"memory": 5}, {"TPU": 1}])
def test_what_has_no_limit_or_does_not_exist_is_not_shared_out(more: Any):
    stage = Stage(DistributeResources(increase_by=more), EIGHT, trials=2)
    assert stage.resize(stage.trials[0]) is None


def test_nothing_happens_where_the_capacity_is_unknown():
    stage = Stage(DistributeResources())
    assert stage.resize(stage.trials[0]) is None


def test_a_goal_that_is_given_nowhere_is_missed_before_anything_runs():
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob(metric="loss"))
    with pytest.raises(ConfigError, match="metric='loss' and mode=None"):
        scheduler.set_search_properties("loss", None)
    own = ResourceChangingScheduler(None, DistributeResourcesToTopJob(metric="loss", mode="min"))
    own.set_search_properties(None, None)
    several = MultiObjectiveASHAScheduler(metrics=["a", "b"], modes="min")
    ResourceChangingScheduler(several, DistributeResourcesToTopJob(metric="a", mode="min"))


def test_one_says_what_it_is():
    function = DistributeResourcesToTopJob(True, {"CPU": 2.0}, 3, {"GPU": 1}, "loss", "min")
    assert repr(function) == (
        "DistributeResourcesToTopJob(add_bundles=True, increase_by={'CPU': 2}, "
        "increase_by_times=3, reserve_resources={'GPU': 1}, metric='loss', mode='min')"
    )
    assert repr(DistributeResources()) == "DistributeResources()"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"add_bundles": 1}, "add_bundles must be True or False, got 1"),
        ({"increase_by": {"cpu": 1}}, "increase_by must be a dict of resource amounts, got"),
        ({"increase_by": {"CPU": -1}}, "must be at least 0, got -1"),
        ({"increase_by": {"CPU": 0}}, "amounts of which one is above 0"),
        ({"increase_by": 2}, "increase_by must be None or a dict of resource amounts, got 2"),
        ({"increase_by_times": 1.5}, "increase_by_times must be an integer, got 1.5"),
        ({"reserve_resources": [1]}, "reserve_resources must be None or a dict"),
        ({"metric": ""}, "metric must be the name of a metric, got ''"),
        ({"mode": "best"}, "mode must be 'min', 'max' or None, got 'best'"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        DistributeResourcesToTopJob(**arguments)
    if not arguments.keys() & {"metric", "mode"}:
        with pytest.raises(ConfigError, match=sentence):
            DistributeResources(**arguments)


def on_one_host(function: Any, base: HostPlacement) -> PlacementGroupFactory | None:
    """Return what a distributed trial gets that is alone on a worker with twelve CPUs."""
    stage = Stage(function, {"CPU": 12}, base=base, trials=1)
    return stage.resize(stage.trials[0], acc=1.0)


@pytest.mark.parametrize("function", [DistributeResources, DistributeResourcesToTopJob])
def test_all_ranks_of_a_trial_grow_together(function: Any):
    base = HostPlacement([{"CPU": 1}] * 4, "SPREAD", per_host=4)
    assert on_one_host(function(), base) == HostPlacement([{"CPU": 3}] * 4, "SPREAD", per_host=4)
    five = HostPlacement([{"CPU": 1}] * 5)
    assert on_one_host(function(increase_by={"CPU": 1}), five) == HostPlacement([{"CPU": 2}] * 5)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (HostPlacement([{"CPU": 2}] * 2), HostPlacement([{"CPU": 2}] * 6)),
        (HostPlacement([{"CPU": 1}] * 2, "STRICT_PACK", per_host=2), None),
        (HostPlacement([{"CPU": 2}] * 2, per_host=2), None),  # There is no second host.
        (HostPlacement([{}] * 2), None),  # Ranks without resources have no end.
    ],
)
def test_a_new_bundle_of_a_distributed_trial_is_a_rank(base: HostPlacement, expected: Any):
    assert on_one_host(DistributeResources(add_bundles=True), base) == expected


def test_a_new_rank_has_the_resources_of_the_others():
    function = DistributeResources(add_bundles=True, increase_by={"CPU": 1})
    message = r"increase_by must be those of a rank, \{'CPU': 2\}, got \{'CPU': 1\}"
    with pytest.raises(ConfigError, match=message):
        on_one_host(function, HostPlacement([{"CPU": 2}] * 2))


def test_more_ranks_come_with_whole_hosts():
    workers = {f"tcp://{host}:1": {"CPU": 2.0} for host in "abc"}
    stage = Stage(DistributeResources(add_bundles=True), trials=0)
    stage.workers.update(workers)
    trial = stage.add(HostPlacement([{"CPU": 1}] * 2, per_host=2), worker="tcp://a:1")
    assert stage.resize(trial) == HostPlacement([{"CPU": 1}] * 6, per_host=2)
