"""Schedulers by name, the contract's defaults, and the simplest scheduler."""

from __future__ import annotations

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.schedulers import (
    AsyncHyperBandScheduler,
    Continue,
    FIFOScheduler,
    FunctionScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    Pause,
    PromotingASHAScheduler,
    Stop,
    StopOther,
    SuccessiveHalvingScheduler,
    TrialScheduler,
    Unpause,
    Waiting,
    create_scheduler,
)
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial


class Minimal(TrialScheduler):
    def on_trial_result(self, trial, result):
        return Continue()

    def choose_trial_to_run(self, waiting):
        return None


@pytest.fixture
def trial():
    return Trial(trial_id="a_00000", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("fifo", FIFOScheduler),
        ("asha", AsyncHyperBandScheduler),
        ("async_hyperband", AsyncHyperBandScheduler),
        ("asynchyperband", AsyncHyperBandScheduler),
        ("hyperband", HyperBandScheduler),
        ("hb_bohb", HyperBandForBOHB),
        ("successive_halving", SuccessiveHalvingScheduler),
        ("promoting_asha", PromotingASHAScheduler),
        ("median_stopping_rule", MedianStoppingRule),
        ("medianstopping", MedianStoppingRule),
    ],
)
def test_schedulers_are_made_by_name(name, cls):
    assert type(create_scheduler(name)) is cls


def test_those_that_need_arguments_are_made_by_name_too():
    assert type(create_scheduler("function", function=dict)) is FunctionScheduler
    fronts = create_scheduler("multi_objective_asha", metrics=["loss", "seconds"], modes="min")
    assert type(fronts) is MultiObjectiveASHAScheduler


@pytest.fixture
def foreign(monkeypatch, tmp_path):
    """Another package that is installed and registers schedulers."""
    found = {
        "best": f"{__name__}:Minimal",
        "broken": "no.such.package:Scheduler",
        "other": "builtins:dict",
        "fifo": f"{__name__}:Minimal",
    }
    lines = [f"{name} = {value}" for name, value in found.items()]
    installed = tmp_path / "other-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    told = "\n".join(["[dasktune.schedulers]", *lines])
    (installed / "entry_points.txt").write_text(told)
    monkeypatch.syspath_prepend(tmp_path)


def test_schedulers_of_other_packages_are_found(foreign):
    assert type(create_scheduler("best")).__name__ == "Minimal"


def test_no_package_can_take_the_name_of_ours(foreign):
    assert type(create_scheduler("fifo")) is FIFOScheduler


def test_an_unknown_name_is_answered_with_those_of_other_packages_too(foreign):
    with pytest.raises(ConfigError, match="function, best, broken, fifo, other, got 'bset'"):
        create_scheduler("bset")


def test_a_scheduler_that_cannot_be_imported_is_named(foreign):
    with pytest.raises(ConfigError, match="scheduler 'broken' must be importable, got ModuleNotF"):
        create_scheduler("broken")


def test_what_is_no_scheduler_is_refused(foreign):
    with pytest.raises(ConfigError, match="entry point 'other' must be a TrialScheduler, got 'dict'"):
        create_scheduler("other")


def test_arguments_reach_the_scheduler():
    assert create_scheduler("asha", metric="acc", mode="max", max_t=9).max_t == 9


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("asha", {"maxt": 9}, r"\(time_attr, metric, .*, got {'maxt': 9}: .* argument 'maxt'"),
        ("multi_objective_asha", {}, r"metrics, .*, got {}: missing .* argument: 'metrics'"),
        ("pbt_replay", {}, r"\(policy_file\), got {}: missing .* argument: 'policy_file'"),
        ("best", {"speed": 3}, r"\(\), got {'speed': 3}: .* argument 'speed'"),
    ],
)
def test_arguments_that_are_missing_or_unknown_are_named(foreign, name, given, told):
    rule = f"the arguments of scheduler '{name}' must be "
    with pytest.raises(ConfigError, match=rule + ".*" + told):
        create_scheduler(name, **given)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"one of fifo, asha, .* got 'ash'"):
        create_scheduler("ash")


def test_fifo_takes_pending_trials_before_paused_ones(trial):
    other = Trial(trial_id="a_00001", config={}, resources=trial.resources)
    fifo = FIFOScheduler()
    assert fifo.choose_trial_to_run(Waiting({}, {})) is None
    assert fifo.choose_trial_to_run(Waiting({}, {"a_00001": other})) is other
    both = Waiting({"a_00000": trial}, {"a_00001": other})
    assert [fifo.choose_trial_to_run(both) for _ in range(2)] == [trial, trial]


def test_fifo_never_interferes(trial):
    fifo = FIFOScheduler()
    assert fifo.on_trial_result(trial, {"loss": 1.0}) == Continue()
    assert fifo.next_milestones(trial) == ()
    assert fifo.debug_string() == "FIFOScheduler"


def test_a_scheduler_needs_two_methods_and_gets_sound_defaults(trial):
    scheduler = Minimal()
    scheduler.seed(SeedSequence(0))
    scheduler.on_trial_add(trial)
    scheduler.on_trial_start(trial)
    assert scheduler.on_trial_complete(trial, {}) == ()
    assert scheduler.on_trial_error(trial) == ()
    assert scheduler.on_trial_remove(trial) == ()
    assert scheduler.on_search_end() == ()
    assert scheduler.search_info(trial, {}) == {}
    assert scheduler.waits_for_others is False
    assert scheduler.next_milestones(trial) == EVERY_RESULT
    assert scheduler.debug_string() == "Minimal"
    assert scheduler.on_standstill(Waiting({"a": trial}, {"b": trial})) == (
        StopOther(trial_id="a", reason="Minimal never chose it to run again"),
        StopOther(trial_id="b", reason="Minimal never chose it to run again"),
    )
    scheduler.load_state_dict(scheduler.state_dict())
    assert scheduler.state_dict() == {}
    with pytest.raises(TypeError, match="abstract"):
        TrialScheduler()


def test_metric_and_mode_are_filled_in_where_they_were_left_open():
    scheduler = Minimal()
    scheduler.set_search_properties("loss", None)
    scheduler.set_search_properties("loss", "min")
    scheduler.set_search_properties(None, None)
    assert (scheduler.metric, scheduler.mode) == ("loss", "min")


@pytest.mark.parametrize(("metric", "mode"), [("acc", "min"), ("loss", "max")])
def test_metric_and_mode_may_not_be_contradicted(metric, mode):
    scheduler = Minimal()
    scheduler.set_search_properties("loss", "min")
    with pytest.raises(ConfigError, match=r"Minimal\((metric|mode)=...\) must be equal to Tune"):
        scheduler.set_search_properties(metric, mode)


def test_decisions_are_values():
    commands = (Unpause(trial_id="a_00001"), StopOther(trial_id="a_00002", reason="worst"))
    assert Continue(commands=commands) == Continue(save=False, commands=commands)
    assert Pause("waits") == Pause("waits", save=True)
    assert len({Stop("bad"), Stop("bad"), Stop("worse")}) == 2
