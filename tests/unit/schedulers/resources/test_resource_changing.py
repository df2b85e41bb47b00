"""A scheduler around another one: what it adds, and that it keeps nothing to itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from numpy.random import SeedSequence
from resizing_kit import ONE_CPU, Stage, cpus

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    ASHAScheduler,
    CheckpointKind,
    ClusterView,
    Continue,
    FIFOScheduler,
    HyperBandForBOHB,
    Pause,
    PopulationBasedTraining,
    Resize,
    ResizeWaiting,
    ResourceChangingScheduler,
    Stop,
    StopOther,
    TrialScheduler,
    Waiting,
    create_scheduler,
)
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory, Resources
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

EIGHT = {"CPU": 8}


def always(wish: Any) -> Any:
    return lambda view, trial, result, scheduler: wish


class Deciding(FIFOScheduler):
    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        return self.decision


def test_several_trials_may_be_on_their_way_to_other_resources_at_once():
    stage = Stage(always(cpus(2)), EIGHT)
    decisions = [stage.report(trial) for trial in stage.trials]
    for trial, decision in zip(stage.trials, decisions, strict=True):
        assert decision == Resize(cpus(2), "resumes with 2 CPU instead of 1 CPU")
        stage.leave(trial, decision)
    new_one = Trial(trial_id="new", config={}, resources=ONE_CPU)
    # As if it had come first: a place is kept for the trial that has left it.
    waiting = Waiting({"new": new_one, **stage.pending}, {})
    for trial in stage.trials:
        assert stage.scheduler.choose_trial_to_run(waiting) is trial
        assert trial.resources == cpus(2)
        waiting.pending.pop(trial.trial_id)  # type: ignore[attr-defined]
        stage.come_back(trial)
    assert stage.scheduler.choose_trial_to_run(waiting) is new_one


@pytest.mark.parametrize("end", ["on_trial_complete", "on_trial_error", "on_trial_remove"])
def test_who_ends_on_the_way_is_not_waited_for(end: str):
    stage = Stage(always(cpus(2)), EIGHT)
    trial = stage.trials[0]
    stage.leave(trial, stage.report(trial))
    assert stage.scheduler.state_dict()["leaving"] == [trial.trial_id]
    result = [{}] if end == "on_trial_complete" else []
    getattr(stage.scheduler, end)(trial, *result)
    assert stage.scheduler.state_dict()["leaving"] == []


@pytest.mark.parametrize(
    "wish",
    [cpus(3), {"cpu": 3}, {"CPU": 3}, Resources(cpu=3)],
    ids=["factory", "cpu", "CPU", "old"],
)
def test_a_function_may_say_it_in_any_way_that_a_user_does(wish: Any):
    stage = Stage(always(wish), EIGHT)
    assert stage.resize(stage.trials[0]) == cpus(3)
    assert stage.resize(stage.trials[0]) is None


def test_what_is_no_request_is_answered_with_what_is():
    with pytest.raises(ConfigError, match="resources must be None, a dict"):
        Stage(always(3), EIGHT).resize(Stage(always(3), EIGHT).trials[0])


def test_the_function_sees_the_trials_and_the_cluster():
    seen: list[Any] = []
    stage = Stage(lambda *told: seen.append(told), EIGHT, {"CPU": 4, "GPU": 1})
    stage.report(stage.trials[1], acc=0.5)
    [(view, trial, result, scheduler)] = seen
    assert isinstance(view, ClusterView)
    assert trial is stage.trials[1]
    assert result == {"training_iteration": 1, "acc": 0.5}
    assert scheduler is stage.scheduler
    assert scheduler.base_trial_resources == scheduler._base_trial_resources == ONE_CPU
    assert view.get_live_trials() == stage.trials
    assert view.total_resources == {"CPU": 12, "GPU": 1}
    # As Ray Tune's example reads them.
    assert view._resource_updater.get_num_cpus() == 12
    assert view._resource_updater.get_num_gpus() == 1
    assert view.claimed_by(stage.trials) == {"CPU": 4}
    assert view.fits(trial, cpus(5))
    assert not view.fits(trial, cpus(6))


def test_waiting_ranks_are_placed_on_hosts_first() -> None:
    ranks = Trial(trial_id="t0", config={}, resources=HostPlacement([{"CPU": 1}] * 2, "STRICT_PACK"))
    asking = Trial(trial_id="t1", config={}, resources=ONE_CPU, worker="tcp://gone:1")
    asking.status = TrialStatus.RUNNING
    # No worker has room for two ranks, but their host has.
    workers = {"tcp://a:1": {"CPU": 1.0}, "tcp://a:2": {"CPU": 1.0}}
    view = ClusterView(trials={}, pending={"t0": ranks}, paused={}, active={"t1": asking}, workers=workers)
    assert not view.fits(asking, ONE_CPU)


ON_HOSTS = {f"tcp://{host}:{port}": {"CPU": 4.0} for host in "ab" for port in (1, 2)}


def ranked(function: Any, base: HostPlacement) -> Any:
    """Return the decision about a distributed trial that reports, on two hosts of two workers."""
    trial = Trial(trial_id="t0", config={}, resources=base, worker="tcp://a:1")
    trial.status = TrialStatus.RUNNING
    trial.history.append({"training_iteration": 1})
    scheduler = ResourceChangingScheduler(None, function)
    scheduler.observe(ClusterView(trials={}, pending={}, paused={}, active={"t0": trial}, workers=ON_HOSTS))
    return scheduler.on_trial_result(trial, trial.history[-1])


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"CPU": 2}, HostPlacement([{"CPU": 2}] * 4, "SPREAD", per_host=2)),
        (Resources(cpu=2), HostPlacement([{"CPU": 2}] * 4, "SPREAD", per_host=2)),
        (PlacementGroupFactory([{"CPU": 2}] * 2), HostPlacement([{"CPU": 2}] * 2, per_host=2)),
        (HostPlacement([{"CPU": 2}] * 2, per_host=1), HostPlacement([{"CPU": 2}] * 2, per_host=1)),
    ],
)
def test_a_distributed_trial_keeps_its_layout_by_host(wish: Any, expected: HostPlacement):
    decision = ranked(always(wish), HostPlacement([{"CPU": 1}] * 4, "SPREAD", per_host=2))
    assert isinstance(decision, Resize)
    assert decision.resources == expected


def test_a_request_that_is_no_layout_of_ranks_is_refused():
    base = HostPlacement([{"CPU": 1}] * 4, per_host=2)
    with pytest.raises(ConfigError, match="per_host must be a divisor of the number of ranks, 3, got 2"):
        ranked(always(PlacementGroupFactory([{"CPU": 2}] * 3)), base)
    with pytest.raises(ConfigError, match="bundles must be equal"):
        ranked(always(PlacementGroupFactory([{"CPU": 2}, {"CPU": 1}])), base)


def test_a_larger_request_fits_only_on_hosts():
    # Four CPUs for each of two ranks of a host fit on two workers of it, and five do not.
    base = HostPlacement([{"CPU": 1}] * 4, per_host=2)
    assert isinstance(ranked(always({"CPU": 4}), base), Resize)
    assert isinstance(ranked(always({"CPU": 5}), base), Continue)
    strict = HostPlacement([{"CPU": 1}] * 2, "STRICT_PACK")
    assert isinstance(
        ranked(always(PlacementGroupFactory([{"CPU": 4}] * 3, "STRICT_PACK")), strict), Continue
    )


def test_ranks_elsewhere_count_by_host_in_the_estimate():
    strict = HostPlacement([{"CPU": 4}] * 2, "STRICT_SPREAD")
    other = Trial(trial_id="t0", config={}, resources=strict, worker="tcp://a:1")
    asking = Trial(trial_id="t1", config={}, resources=ONE_CPU, worker="tcp://a:2")
    for one in (other, asking):
        one.status = TrialStatus.RUNNING
    view = ClusterView(trials={}, pending={}, paused={}, active={"t0": other, "t1": asking}, workers=ON_HOSTS)
    assert view.fits(asking, HostPlacement([{"CPU": 4}] * 2, "PACK"))
    assert not view.fits(asking, HostPlacement([{"CPU": 4}] * 3, "PACK"))


def test_without_trials_there_is_no_first_one():
    assert ResourceChangingScheduler().base_trial_resources is None


def test_what_no_worker_has_is_denied(caplog: pytest.LogCaptureFixture):
    """Ray Tune lets the trial wait for it for ever."""
    stage = Stage(always(cpus(6)), EIGHT)
    with caplog.at_level(logging.DEBUG):
        assert stage.resize(stage.trials[0]) is None
    assert "does not fit on the workers" in caplog.text
    for trial in stage.trials[1:3]:
        stage.end(trial)
    assert stage.resize(stage.trials[0]) == cpus(6)


def test_where_the_capacity_is_unknown_the_function_is_believed():
    stage = Stage(always(cpus(600)))
    assert stage.resize(stage.trials[0]) == cpus(600)


def test_a_trial_may_always_have_less_while_others_wait():
    stage = Stage(always(cpus(3)), {"CPU": 4}, trials=0)
    large = stage.add(cpus(4))
    lost = stage.add(cpus(4))
    lost.first_resources = cpus(4)
    stage.wait(lost)
    assert stage.resize(large) == cpus(3)


@pytest.mark.parametrize("decision", [Stop("bad"), Pause("others first")])
def test_only_a_trial_that_is_kept_is_resized(decision: Any):
    stage = Stage(always(cpus(2)), EIGHT, scheduler=Deciding(decision))
    assert stage.report(stage.trials[0]) is decision


def test_a_trial_that_is_done_is_not_resized():
    stage = Stage(always(cpus(2)), EIGHT)
    assert stage.report(stage.trials[0], done=True) == Continue()


def test_what_else_was_decided_is_done_too():
    other = StopOther(trial_id="t1", reason="beaten")
    disk = CheckpointKind.PERSISTENT
    stage = Stage(always(cpus(2)), EIGHT, scheduler=Deciding(Continue(save=True, commands=(other,))))
    decision = stage.report(stage.trials[0])
    assert decision == Resize(cpus(2), decision.reason, commands=(other,), kind=disk)
    stage = Stage(always(cpus(2)), EIGHT, scheduler=Deciding(Continue(commands=(other,))))
    assert stage.report(stage.trials[0]).kind is CheckpointKind.MEMORY


def test_who_waits_for_what_is_not_there_any_more_asks_for_its_base():
    stage = Stage(always(None), {"CPU": 4}, {"CPU": 4}, trials=2)
    first, second = stage.trials
    lost = stage.add(cpus(3))
    lost.first_resources = ONE_CPU
    stage.wait(lost)
    assert stage.scheduler.on_cluster_change() == ()
    del stage.workers["w1"]
    smaller = ResizeWaiting(trial_id=lost.trial_id, resources=ONE_CPU)
    assert stage.scheduler.on_cluster_change() == (smaller,)
    # The decision on the next result says so.
    assert stage.report(first).commands == (smaller,)
    assert stage.scheduler.choose_trial_to_run(Waiting(stage.pending, {})) is lost
    stage.end(first)
    stage.end(second)
    assert stage.scheduler.choose_trial_to_run(Waiting(stage.pending, {})) is lost
    stage.workers["w0"] = {"CPU": 2}
    assert stage.scheduler.choose_trial_to_run(Waiting(stage.pending, {})) is None
    assert stage.scheduler.on_standstill(Waiting(stage.pending, {})) == (smaller,)
    lost.resources, lost.first_resources = ONE_CPU, None
    assert stage.scheduler.choose_trial_to_run(Waiting(stage.pending, {})) is lost
    assert stage.scheduler.on_cluster_change() == ()


def test_what_is_about_to_be_taken_is_not_promised_again():
    stage = Stage(always(cpus(3)), {"CPU": 4}, trials=2)
    first, second = stage.trials
    decision = stage.report(first)
    # It has not left its worker yet.
    first.resources, first.first_resources = decision.resources, ONE_CPU
    first.status = TrialStatus.RESIZING
    assert stage.resize(second) is None
    stage.pending[first.trial_id] = stage.active.pop(first.trial_id)
    first.status = TrialStatus.PENDING
    assert stage.resize(second) is None


def test_where_further_bundles_may_be_is_free_to_no_other():
    stage = Stage(always(cpus(4)), {"CPU": 2}, {"CPU": 4}, trials=1)
    stage.add(PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}]))
    assert stage.resize(stage.trials[0]) is None
    helped = Stage(always(cpus(2)), {"CPU": 4}, trials=1)
    helped.add(PlacementGroupFactory([{}, {"CPU": 2}]))
    assert helped.resize(helped.trials[0]) == cpus(2)


class Spy(TrialScheduler):
    """Writes down what it is asked."""

    waits_for_others = True  # type: ignore[assignment]

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in ("asked", "metric", "mode"):
            self.asked.append(name)
        return super().__getattribute__(name)

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        return Continue()

    def choose_trial_to_run(self, waiting: Any) -> Any:
        return None


def test_the_scheduler_inside_gets_everything():
    spy = Spy()
    scheduler = ResourceChangingScheduler(spy)
    nothing = Waiting({}, {})
    trial = Trial(trial_id="t", config={}, resources=ONE_CPU)
    calls: dict[str, tuple[Any, ...]] = {
        "set_search_properties": ("loss", "min"),
        "seed": (SeedSequence(0),),
        "observe": (ClusterView(trials={}, pending={}, paused={}, active={}, workers={}),),
        "on_cluster_change": (),
        "on_trial_add": (trial,),
        "on_trial_start": (trial,),
        "on_trial_result": (trial, {"training_iteration": 1}),
        "on_trial_exploit": (trial, trial),
        "on_trial_complete": (trial, {}),
        "on_trial_error": (trial,),
        "on_trial_remove": (trial,),
        "on_search_end": (),
        "on_answer": (1, None),
        "choose_trial_to_run": (nothing,),
        "on_standstill": (nothing,),
        "search_info": (trial, {}),
        "debug_string": (),
        "state_dict": (),
    }
    for name, arguments in calls.items():
        spy.asked.clear()
        getattr(scheduler, name)(*arguments)
        assert name in spy.asked
    assert scheduler.waits_for_others
    assert scheduler.writes_policies
    scheduler.load_state_dict({"base": {}, "leaving": ["t"]})
    assert spy.asked[-1] == "load_state_dict"
    # Whatever a scheduler may be told or asked: what was added later has to be handed on, too.
    public = {name for name in vars(TrialScheduler) if not name.startswith("_")}
    own = {"metric", "mode", "starts_in_order", "follows_cluster", "next_milestones"}
    assert public - own <= set(vars(ResourceChangingScheduler))


def test_what_it_judges_by_is_what_the_one_inside_judges_by():
    asha = ResourceChangingScheduler(ASHAScheduler(metric="loss", mode="min"))
    asha.set_search_properties(None, None)
    assert (asha.metric, asha.mode) == ("loss", "min")
    with pytest.raises(ConfigError, match="Set metric in one place"):
        ResourceChangingScheduler(ASHAScheduler(metric="loss")).set_search_properties("acc", "max")


def test_trials_are_cloned_if_the_base_scheduler_clones_them():
    population = PopulationBasedTraining(hyperparam_mutations={"x": [1, 2]})
    assert ResourceChangingScheduler(population).clones_trials
    assert not ResourceChangingScheduler(ASHAScheduler()).clones_trials


def test_every_result_waits_for_a_decision_unless_nothing_ever_changes():
    trial = Trial(trial_id="t", config={}, resources=ONE_CPU)
    base = ASHAScheduler(max_t=9, grace_period=3)
    assert ResourceChangingScheduler(base).next_milestones(trial) == EVERY_RESULT
    still = ResourceChangingScheduler(base, None)
    still.on_trial_add(trial)
    assert still.next_milestones(trial) == base.next_milestones(trial) != EVERY_RESULT
    assert still.on_trial_result(trial, {"training_iteration": 1}) == Continue()
    assert not still.starts_in_order
    assert still.follows_cluster
    assert not FIFOScheduler().follows_cluster


def test_one_can_have_it_by_its_name():
    scheduler = create_scheduler("resource_changing", base_scheduler=HyperBandForBOHB(max_t=9))
    assert isinstance(scheduler, ResourceChangingScheduler)
    assert scheduler.waits_for_others
    assert "DistributeResources): Using HyperBand" in scheduler.debug_string()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"base_scheduler": "asha"}, "base_scheduler must be a TrialScheduler, got 'asha'"),
        (
            {"resources_allocation_function": 2},
            r"must be None, or callable with \(view, trial, result, scheduler\), got 2",
        ),
        (
            {"resources_allocation_function": lambda trial, result: None},
            r"must be None, or callable with \(view, trial, result, scheduler\), got <function",
        ),
    ],
)
def test_arguments_of_the_scheduler_are_checked_at_once(arguments: Any, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        ResourceChangingScheduler(**arguments)
