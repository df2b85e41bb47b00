"""Searchers that think while trials run, and drivers that die meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_replay import Descent, Recorder, configs, curve, followed, state
from test_restored_experiments import ONE_CPU, Lab, driven, once_each, parts_of

from dasktune.experiment import ExperimentMachine
from dasktune.runner import RunInline, TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.runner.replay import replay
from dasktune.search import ConcurrencyLimiter, OptunaSearch, Repeater, Searcher
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import ManualClock, SimulatedTrialExecutor

pytestmark = pytest.mark.usefixtures("quick_bandit")


class Undisturbed(Descent):
    """Must not be called by anybody while it thinks."""

    thinks_for = ""

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        assert not self.thinks_for

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        assert not self.thinks_for
        super().on_trial_complete(trial_id, result, error)

    def state_dict(self) -> dict[str, Any]:
        assert not self.thinks_for
        return super().state_dict()


def optuna_search() -> Searcher:
    optuna = pytest.importorskip("optuna", reason="it is an extra")
    return OptunaSearch(sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=2))


SEARCHES: dict[str, Callable[[], Searcher]] = {
    "searcher": Undisturbed,
    "limited": lambda: ConcurrencyLimiter(Undisturbed(), 3),
    "batches": lambda: ConcurrencyLimiter(Undisturbed(), 3, batch=True),
    "repeated": lambda: Repeater(Undisturbed(), 2),
    "limited-repeater": lambda: ConcurrencyLimiter(Repeater(Undisturbed(), 2), 3),
    "optuna": optuna_search,
}
CASES = [
    *(("fifo", search) for search in SEARCHES),
    *((scheduler, "limited") for scheduler in ("asha", "hyperband", "bohb", "promoting", "pbt")),
    *((scheduler, "searcher") for scheduler in ("asha", "hyperband", "halving", "resizing")),
]


class Awkward(RunInline):
    """Thinks for a random number of rounds of the loop before it answers.

    It asks the question at the very beginning or at the very end: the results are the same.
    """

    def __init__(self, searcher: Searcher | None, random: Random) -> None:
        super().__init__()
        self.searcher, self.random = searcher, random
        self.left = 0

    def submit(self, name: Any, question: Callable[[], Any]) -> None:
        if isinstance(self.searcher, Undisturbed) and isinstance(name, str):
            self.searcher.thinks_for = name
        self.left = self.random.choice([0, 0, 1, 3, 10, 40])
        if self.random.random() < 0.5:
            answer = question()
            super().submit(name, lambda: answer)
        else:
            super().submit(name, question)

    def answers(self) -> Sequence[tuple[Any, Any]]:
        self.left -= 1
        if self.left >= 0:
            return []
        if isinstance(self.searcher, Undisturbed):
            self.searcher.thinks_for = ""
        return super().answers()


def innermost(searcher: Any) -> Searcher:
    while hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    return searcher


def parts(scheduler: str, search: str) -> dict[str, Any]:
    made = parts_of(scheduler, "searcher")
    made["tune_config"] = replace(made["tune_config"], search_alg=SEARCHES[search]())
    if search == "optuna":
        made["param_space"] = configs(scheduler, "variants")["param_space"] | {"depth": 2}
    return made


def drive(experiment: ExperimentMachine, store: Any, seed: int) -> ExperimentMachine:
    clock, random = ManualClock(), Random(seed)
    searcher = innermost(experiment.search)
    TrialRunner(
        experiment,
        SimulatedTrialExecutor(curve, clock=clock, slots=3),
        store=store,
        clock=clock,
        resources_for=lambda config: ONE_CPU,
        checkpoint_period=100.0,
        background=lambda wake: Awkward(searcher, random),
    ).run()
    return experiment


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def lived(request: pytest.FixtureRequest) -> tuple[tuple[str, str], Recorder, ExperimentMachine]:
    store = Recorder()
    experiment = drive(build_experiment(*parts(*request.param).values()), store, seed=5)
    return request.param, store, experiment


def fresh(case: tuple[str, str]) -> ExperimentMachine:
    return build_experiment(*parts(*case).values())


def test_trials_run_while_a_search_thinks_and_all_of_them_end(lived: Any):
    _, store, experiment = lived
    names = [record["event"] for record in store.records]
    asked = [at for at, name in enumerate(names) if name == "SuggestionAsked"]
    answered = [at for at, name in enumerate(names) if name == "Suggested"]
    assert len(asked) == len(answered) > 12
    assert any("ResultReported" in names[a:b] for a, b in zip(asked, answered, strict=True))
    assert len(experiment.trials) == 12
    once_each(experiment)


def test_a_search_is_asked_again_in_replay_where_it_was_asked(lived: Any, caplog: pytest.LogCaptureFixture):
    case, store, experiment = lived
    again, done = fresh(case), 0
    assert len(store.snapshots) > 2
    for position, snapshot in sorted(store.snapshots.items()):
        replay(again, store.records[done:position], lambda trial_id: {})
        done = position
        if case[1] != "optuna":  # its study notes the time
            assert decode(encode(again.state_dict())) == decode(snapshot)
    replay(again, store.records[done:], lambda trial_id: {})
    assert case[1] == "optuna" or state(again) == state(experiment)
    assert [trial.config for trial in again.trials.values()] == [
        trial.config for trial in experiment.trials.values()
    ]
    # It has said the same again.
    assert not caplog.records


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_state_behaves_like_the_search_it_was_taken_of(lived: Any, data: Any):
    case, store, _ = lived
    if case[1] == "optuna":
        return
    cut = data.draw(st.integers(0, len(store.records)))
    live = fresh(case)
    replay(live, store.records[:cut], lambda trial_id: {})
    restored = fresh(case)
    restored.load_state_dict(decode(encode(live.state_dict())))
    assert state(restored) == state(live)
    rest = store.records[cut : cut + 25]
    assert followed(restored, rest) == followed(live, rest)


class SlowLab(Lab):
    """Its drivers' searchers think for some rounds."""

    random = Random(11)

    def background(self, experiment: ExperimentMachine) -> Any:
        searcher = innermost(experiment.search)
        return lambda wake: Awkward(searcher, self.random)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    search=st.sampled_from(["searcher", "limited", "batches", "repeated"]),
    lives=st.lists(st.integers(0, 90), min_size=1, max_size=4),
)
def test_drivers_may_die_while_a_search_thinks(search: str, lives: list[int]):
    storage = Storage("memory://slow/dying")
    storage.remove_tree()
    experiment = driven(SlowLab(storage, **parts("fifo", search)), lives)
    assert len(experiment.trials) == 12
    once_each(experiment)
