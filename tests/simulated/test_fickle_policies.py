"""Policies that cannot be asked twice: in replay, what was decided stands."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_replay import Descent, Recorder, curve
from test_restored_experiments import ONE_CPU, Died, Lab, once_each

from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.errors import StorageError
from dasktune.experiment import ExperimentMachine
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Exploit,
    ExploitOther,
    Pause,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.stopper import Stopper
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import ManualClock, SimulatedTrialExecutor
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.trial import Trial


class Mood:
    """What users' policies look at besides their arguments. No state holds it."""

    draws = random.Random(0)


class FickleScheduler(FIFOScheduler):
    """Decides as it likes, and never twice the same."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_trial_add(self, trial: Trial) -> None:
        self.seen.append(trial.trial_id)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        commands = self._commands()
        kind = Mood.draws.choices(["continue", "save", "pause", "exploit", "stop"], [10, 2, 2, 2, 1])[0]
        if kind == "pause":
            return Pause("a rest", save=Mood.draws.random() < 0.5, hold=self._holds(), commands=commands)
        if kind == "exploit":
            return Exploit(
                Mood.draws.choice(self.seen),
                {"lr": Mood.draws.random(), "depth": 2},
                f"mood {Mood.draws.random():.3f}",
                iteration=Mood.draws.choice([None, 2, 5]),
                commands=commands,
            )
        if kind == "stop":
            return Stop(f"mood {Mood.draws.random():.3f}", commands)
        return Continue(save=kind == "save", hold=self._holds(), commands=commands)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        return self._commands()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        return self._commands()

    def _holds(self) -> bool:
        return Mood.draws.random() < 0.3

    def _commands(self) -> tuple[Command, ...]:
        if Mood.draws.random() < 0.8:
            return ()
        other = Mood.draws.choice(self.seen)
        stop = StopOther(trial_id=other, reason=f"mood {Mood.draws.random():.3f}")
        clone = ExploitOther(
            trial_id=other,
            donor=Mood.draws.choice(self.seen),
            config={"lr": Mood.draws.random(), "depth": 2},
            reason=f"mood {Mood.draws.random():.3f}",
        )
        first = Mood.draws.choice([Unpause(trial_id=other), stop, clone])
        return (first, Unpause(trial_id=self.seen[0]))

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        return EVERY_RESULT

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = list(state["seen"])


class FickleStopper(Stopper):
    """Stops, raises and ends everything as it likes."""

    def __init__(self, ends: float = 0.0) -> None:
        self.ends = ends

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        mood = Mood.draws.random()
        if mood < 0.02:
            raise LookupError(f"mood {mood:.3f}")
        return mood > 0.95

    def reason(self, trial_id: str, result: Mapping[str, Any]) -> str:
        return f"mood {Mood.draws.random():.3f}"

    def stop_all(self) -> bool:
        return Mood.draws.random() < self.ends


def parts(scheduler: bool = True, stopper: bool = True, ends: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "tune_config": TuneConfig(
            metric="loss",
            mode="min",
            num_samples=12,
            seed=7,
            scheduler=FickleScheduler() if scheduler else None,
            search_alg=Descent(),
        ),
        "run_config": RunConfig(
            stop=FickleStopper(ends) if stopper else None,
            failure_config=FailureConfig(**more),
        ),
        "param_space": {"depth": 2},
    }


def known(experiment: ExperimentMachine) -> str:
    """All but what the policies make of it."""
    state = experiment.state_dict()
    return encode({**state, "policies": None}).decode()


class Biographer(Recorder):
    """Keeps what the experiment knew after each record."""

    experiment: ExperimentMachine

    def __init__(self) -> None:
        super().__init__()
        self.states: list[str] = []

    def append(self, record: Any) -> int:
        position = super().append(record)
        self.states.append(known(self.experiment))
        return position


def lived(given: dict[str, Any], mood: int) -> Biographer:
    Mood.draws = random.Random(mood)
    store, clock = Biographer(), ManualClock()
    store.experiment = build_experiment(*given.values())
    executor = SimulatedTrialExecutor(curve, clock=clock, slots=3, lose={70.0: 1, 200.0: 2})
    TrialRunner(
        store.experiment,
        executor,
        store=store,
        clock=clock,
        resources_for=lambda config: ONE_CPU,
    ).run()
    return store


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    mood=st.integers(0, 10**6),
    scheduler=st.booleans(),
    stopper=st.booleans(),
    ends=st.sampled_from([0.0, 0.002]),
    fail_fast=st.booleans(),
)
def test_whatever_they_answer_now_the_state_is_what_it_was_after_each_record(
    mood: int, scheduler: bool, stopper: bool, ends: float, fail_fast: bool
):
    given = parts(scheduler, stopper, ends, fail_fast=fail_fast)
    store = lived(given, mood)
    Mood.draws = random.Random(mood + 1)
    again = build_experiment(*parts(scheduler, stopper, ends, fail_fast=fail_fast).values())
    for record, state in zip(store.records, store.states, strict=True):
        replay(again, [record], lambda trial_id: {})
        assert known(again) == state


def test_a_searcher_learns_again_what_it_had_learnt_from_what_was_decided():
    store = lived(parts(), mood=3)
    Mood.draws = random.Random(4)
    again = build_experiment(*parts().values())
    replay(again, store.records, lambda trial_id: {})
    assert again.search.state_dict() == store.experiment.search.state_dict()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.integers(0, 120), min_size=1, max_size=4), mood=st.integers(0, 10**6))
def test_however_often_its_driver_dies_every_trial_ends_and_what_was_decided_stands(
    lives: list[int], mood: int
):
    Mood.draws = random.Random(mood)
    storage = Storage("memory://restored/fickle")
    storage.remove_tree()
    place = Lab(storage, **parts())
    known_once: dict[str, tuple[str, str]] = {}
    begun = False
    for limit in [*lives, 10**9]:
        try:
            experiment = place.resume(limit) if begun else place.begin(limit)
        except Died:
            begun = True
            stopped = dict(_stopped(storage))
            # Who had been stopped stays so, for the reason that it was.
            assert {key: stopped[key] for key in known_once} == known_once
            known_once = stopped
            continue
        break
    once_each(experiment)
    assert len(experiment.trials) == 12
    for key, reason in dict(_stopped(storage)).items():
        assert experiment.trials[key].reason == reason


def _stopped(storage: Storage) -> Iterator[tuple[str, str]]:
    for record in read_journal(storage):
        for action in record.get("actions", ()):
            if action["do"] in ("StopTrial", "FinishTrial", "FailTrial"):
                yield action["trial_id"], action["reason"]


def test_one_warning_names_who_was_overruled(caplog: pytest.LogCaptureFixture):
    store = lived(parts(), mood=1)
    again = build_experiment(*parts().values())
    with caplog.at_level(logging.WARNING):
        replay(again, store.records, lambda trial_id: {})
    (line,) = [one.message for one in caplog.records if "decides differently" in one.message]
    assert "Fickle" in line
    assert "recorded decisions are kept" in line


def test_a_policy_of_arguments_only_is_not_warned_of(caplog: pytest.LogCaptureFixture):
    store = lived(parts(scheduler=False, stopper=False), mood=1)
    again = build_experiment(*parts(scheduler=False, stopper=False).values())
    with caplog.at_level(logging.WARNING):
        replay(again, store.records, lambda trial_id: {})
    assert not [one for one in caplog.records if "decides differently" in one.message]


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("FinishTrial", lambda one: one.update(do="UnpauseTrial"), "InvalidTransition"),
        ("StopTrial", lambda one: one.update(trial_id="no-such-id"), "led to|no-such-id"),
        ("StopTrial", lambda one: one.update(do="Dance"), "led to"),
        ("StopTrial", lambda one: one.pop("reason"), "reason"),
        ("StartTrial", lambda one: one.update(do="StopTrial", reason="x"), "led to"),
        ("PauseTrial", lambda one: one.update(do="EndExperiment", reason="x"), "led to"),
    ],
)
def test_what_cannot_have_happened_is_refused(kind: str, damage: Any, message: str):
    store = lived(parts(), mood=0)
    records = decode(encode({"all": store.records}))["all"]
    damage(next(one for r in records for one in r.get("actions", ()) if one["do"] == kind))
    with pytest.raises(StorageError, match=message):
        replay(build_experiment(*parts().values()), records, lambda trial_id: {})
