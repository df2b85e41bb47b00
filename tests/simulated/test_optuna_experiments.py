"""Whole experiments with Optuna: what it is given, and drivers that die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import optuna
import pytest
from test_restored_experiments import Died, Lab, once_each

from dasktune.config import RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.schedulers import ASHAScheduler, PromotingASHAScheduler
from dasktune.search import ConcurrencyLimiter, OptunaSearch
from dasktune.space import choice, loguniform, uniform
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.json_lines import decode, encode

SPACE = {
    "x": uniform(-1, 1),
    "optimizer": choice([{"kind": "sgd", "lr": loguniform(1e-3, 1)}, {"kind": "none"}]),
    "layers": choice([(8,), (8, 8)]),
    "epochs": 9,
}


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for epoch in range(checkpoint or 0, config["epochs"]):
        if config["x"] > 0.95 and epoch == 4:
            raise ValueError("diverged")
        loss = abs(config["x"] - 0.2) + len(config["layers"]) / (epoch + 1)
        yield {"loss": loss}, 30.0 + epoch, epoch + 1


class Fickle(optuna.samplers.RandomSampler):
    """Another one whenever it is copied."""

    copies = 0

    def __reduce__(self) -> Any:
        return another, ()


def another() -> Fickle:
    Fickle.copies += 1
    return Fickle(seed=Fickle.copies)


@contextmanager
def experimental() -> Iterator[None]:
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        yield


def sampler_of(kind: str) -> Any:
    if kind == "qmc":
        with experimental():
            return optuna.samplers.QMCSampler(seed=3, warn_independent_sampling=False)
    return {
        "tpe": lambda: None,
        "random": lambda: optuna.samplers.RandomSampler(seed=3),
        "cma": lambda: optuna.samplers.CmaEsSampler(
            seed=3, n_startup_trials=2, warn_independent_sampling=False
        ),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=3, population_size=4),
    }[kind]()


KINDS = ("tpe", "random", "cma", "nsga2", "qmc")


def lab(name: str, scheduler: Any = None, num_samples: int = 24, **arguments: Any) -> Lab:
    storage = Storage(f"memory://optuna/{name}")
    storage.remove_tree()
    tune_config = TuneConfig(
        metric="loss",
        mode="min",
        num_samples=num_samples,
        seed=7,
        scheduler=scheduler,
        search_alg=OptunaSearch(**arguments),
    )
    parts = {"tune_config": tune_config, "run_config": RunConfig(), "param_space": SPACE}
    return Lab(storage, curve, **parts)


def study_of(experiment: ExperimentMachine) -> Any:
    search: Any = experiment.search
    return search.searcher.study


def asha() -> ASHAScheduler:
    return ASHAScheduler(max_t=9, reduction_factor=3, grace_period=1)


def told(experiment: ExperimentMachine) -> list[Any]:
    return [
        (trial.number, trial.state, trial.params, trial.values, trial.intermediate_values)
        for trial in study_of(experiment).trials
    ]


def test_optuna_gets_how_each_trial_ended_and_how_it_came_there():
    experiment = lab("told", asha()).begin()
    study = study_of(experiment)
    assert len(study.trials) == 24
    states = set()
    for ours, theirs in zip(experiment.trials.values(), study.trials, strict=True):
        states.add(theirs.state.name)
        losses = {row["training_iteration"]: row["loss"] for row in ours.history}
        if ours.public_status.value == "ERROR":
            assert theirs.state.name == "FAIL"
            continue
        pruned = len(losses) < 9
        assert theirs.state.name == ("PRUNED" if pruned else "COMPLETE")
        assert theirs.value == list(losses.values())[-1]
        assert theirs.params["x"] == ours.config["x"]
        if pruned:
            assert theirs.intermediate_values == losses
    assert states >= {"PRUNED", "COMPLETE"}


def test_trials_that_were_paused_and_not_promoted_are_pruned():
    scheduler = PromotingASHAScheduler(max_t=9, reduction_factor=3, grace_period=1)
    experiment = lab("promoting", scheduler, num_samples=9).begin()
    for ours, theirs in zip(experiment.trials.values(), study_of(experiment).trials, strict=True):
        if ours.public_status.value == "TERMINATED":
            assert theirs.state.name == ("COMPLETE" if len(ours.history) == 9 else "PRUNED")


def test_trials_that_end_by_a_stop_criterion_are_complete():
    place = lab("criterion", asha(), num_samples=6)
    place.parts["run_config"] = RunConfig(stop={"training_iteration": 1})
    experiment = place.begin()
    assert {trial.state.name for trial in study_of(experiment).trials} == {"COMPLETE"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_whose_drivers_die_asks_and_tells_the_same(kind: str, caplog: pytest.LogCaptureFixture):
    place = lab(f"stormy-{kind}", sampler=sampler_of(kind))
    with pytest.raises(Died):
        place.begin(60)
    with pytest.raises(Died):
        place.resume(50)
    sooner = place.restore().experiment
    study = study_of(sooner)
    assert any(trial.state.name == "RUNNING" for trial in study.trials)
    experiment = place.resume()
    once_each(experiment)
    assert len(experiment.trials) == 24
    assert "suggests other" not in caplog.text
    asked = len(study.trials)
    wanted = [trial.params for trial in study.trials]
    assert [trial.params for trial in study_of(experiment).trials][:asked] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [25, 75, 105])
def test_a_state_with_pending_trials_answers_as_the_run_that_was_never_interrupted(
    kind: str, position: int, caplog: pytest.LogCaptureFixture
):
    """What was suggested stands in the journal; a replay asks again and compares."""

    def place_of(name: str) -> Lab:
        place = lab(f"{name}-{kind}-{position}", asha(), sampler=sampler_of(kind))
        place.parts["param_space"] = {**SPACE, "layers": choice(["a", "ab"])}
        return place

    calm = place_of("uninterrupted")
    experiment = calm.begin()
    records = list(read_journal(calm.storage))
    load_config = ExperimentStore(calm.storage).load_params
    begun, restored = (build_experiment(*place_of(name).parts.values()) for name in "ab")
    replay(begun, records[:position], load_config)
    pending = [trial for trial in study_of(begun).trials if trial.state.name == "RUNNING"]
    restored.load_state_dict(decode(encode(begun.state_dict())))
    replay(restored, records[position:], load_config)
    assert pending
    assert told(restored) == told(experiment)
    assert "suggests other" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [30, 75, 110])
def test_two_sessions_that_resume_at_the_same_record_suggest_the_same(kind: str, limit: int):
    place = lab(f"twice-{kind}-{limit}", asha(), sampler=sampler_of(kind))
    with pytest.raises(Died):
        place.begin(limit)
    one, other = place.restore().experiment, place.restore().experiment
    assert told(one) == told(other)
    suggestions = [
        [experiment.search.next_trial(f"new_{number}").config for number in range(5)]
        for experiment in (one, other)
    ]
    assert suggestions[0] == suggestions[1]
    assert None not in suggestions[0]


def test_snapshots_change_nothing_about_what_is_suggested():
    """A session restored by its snapshot, and one that replays the journal from the start."""
    place = lab("snapshots", asha())
    with pytest.raises(Died):
        place.begin(110)
    names = place.storage.names("snapshots")
    assert names
    by_snapshot = place.restore().experiment
    for name in names:
        place.storage.write_bytes(f"snapshots/{name}", b"{")
    by_journal = place.restore().experiment
    assert told(by_snapshot) == told(by_journal)
    answers = [one.search.next_trial("new").config for one in (by_snapshot, by_journal)]
    assert answers[0] == answers[1] is not None


def test_a_sampler_that_repeats_nothing_keeps_the_configurations_that_it_gave(
    caplog: pytest.LogCaptureFixture,
):
    Fickle.copies = 0
    place = lab("fickle", sampler=Fickle(seed=0))
    with pytest.raises(Died):
        place.begin(40)
    for name in place.storage.names("snapshots"):
        place.storage.write_bytes(f"snapshots/{name}", b"{")
    experiment = place.restore().experiment
    assert "the search algorithm suggests other configurations" in caplog.text
    adopted = [
        (trial.params["x"], SPACE["layers"][trial.params["layers"]])
        for trial in study_of(experiment).trials
        if "fixed_params" in trial.system_attrs
    ]
    configs = [trial.config for trial in experiment.trials.values()]
    assert adopted == [(config["x"], config["layers"]) for config in configs]
    once_each(place.resume())


@pytest.mark.parametrize("batch", [False, True])
def test_a_limited_search_resumes_within_its_limit(batch: bool, caplog: pytest.LogCaptureFixture):
    place = lab(f"limited-{batch}", asha(), num_samples=12)
    limited = ConcurrencyLimiter(OptunaSearch(), 2, batch=batch)
    place.parts["tune_config"] = replace(place.parts["tune_config"], search_alg=limited)
    for drive in (place.begin, place.resume):
        with pytest.raises(Died):
            drive(40)
    experiment = place.resume()
    once_each(experiment)
    assert "suggests other" not in caplog.text
    search: Any = experiment.search
    study = search.searcher.searcher.study
    assert len(study.trials) == 12
    assert all(trial.state.is_finished() for trial in study.trials)
    assert {trial.state.name for trial in study.trials} >= {"PRUNED", "COMPLETE"}


def test_a_restored_experiment_can_be_given_more_samples():
    place = lab("more", num_samples=4)
    place.begin()
    more = replace(place.parts["tune_config"], num_samples=8, search_alg=OptunaSearch(), scheduler=None)
    experiment = place.resume(tune_config=more)
    assert len(study_of(experiment).trials) == 8
    assert all(trial.state.is_finished() for trial in study_of(experiment).trials)
