"""Callbacks get each event once, in Ray Tune's order, whatever happens to trials and drivers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import cloudpickle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_restored_experiments import Died, Lab, driven, lab, once_each, parts_of, submitted

from dasktune.callback import Callback
from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError
from dasktune.schedulers import Continue, Pause, TrialScheduler
from dasktune.space import grid_search
from dasktune.storage.journal.snapshots import Snapshots
from dasktune.testing import MemoryStore, simulate
from dasktune.tuner.submitted_driver import run_driver

HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


class Diary(Callback):
    """Writes down every hook but those of the turns, with what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def names(self, trial: int = 0) -> list[str]:
        ids = sorted({entry[1] for entry in self.seen if entry[1]})
        return [entry[0] for entry in self.seen if entry[1] == ids[trial]]


def _note(name: str) -> Any:
    def hook(self: Diary, **told: Any) -> None:
        trial = told.get("trial")
        if trial is None:
            self.seen.append((name, ""))
        else:
            self.seen.append((name, trial.trial_id, trial.status, told.get("result")))

    return hook


for _name in ("setup", *HOOKS):
    if "step" not in _name:
        setattr(Diary, _name, _note(_name))


class Once(TrialScheduler):
    """Pauses each trial at its first result."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        if trial.trial_id in self.paused:
            return Continue()
        self.paused.add(trial.trial_id)
        return Pause("once")

    def choose_trial_to_run(self, waiting: Any) -> Any:
        return next(iter((waiting.pending or waiting.paused).values()))


def stumbling() -> Any:
    """Return a trainable that fails once, at its third step."""
    fallen: list[int] = []

    def train(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range((checkpoint or 0) + 1, 5):
            if step == 3 and not fallen:
                fallen.append(step)
                raise ValueError("stumbled")
            yield {"loss": 1.0 / step}, 1.0, step

    return train


def test_a_whole_life_is_seen_in_the_order_of_ray_tune():
    diary = Diary()
    simulate(
        stumbling(),
        tune_config=TuneConfig(metric="loss", mode="min", scheduler=Once(), seed=1),
        run_config=RunConfig(callbacks=[diary], failure_config=FailureConfig(max_failures=1)),
    )
    saved = ["on_trial_result", "on_checkpoint", "on_trial_save"]
    again = ["on_trial_start", "on_trial_restore"]
    assert diary.seen[0][0] == "setup"
    assert diary.names() == [
        "on_trial_start",
        *saved,
        *again,  # after the pause
        *saved,
        "on_trial_recover",
        *again,
        *saved,
        *saved,
        "on_trial_complete",
    ]
    assert diary.seen[-1] == ("on_experiment_end", "")
    statuses = [entry[2] for entry in diary.seen if len(entry) > 2]
    assert statuses[0] == "RUNNING"
    assert statuses[-1] == "TERMINATED"


def test_turns_come_with_their_numbers_and_all_trials():
    turns: list[tuple[str, int, int]] = []

    class Turns(Callback):
        def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
            turns.append(("begin", iteration, len(trials)))

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            turns.append(("end", iteration, len(trials)))

    simulate(
        failing,
        param_space={"x": 0},
        tune_config=TuneConfig(num_samples=2),
        run_config=RunConfig(callbacks=[Turns()]),
    )
    assert turns[:2] == [("begin", 1, 0), ("end", 1, 2)]
    assert [turn[0] for turn in turns] == ["begin", "end"] * (len(turns) // 2)
    assert [turn[1] for turn in turns[::2]] == list(range(1, len(turns) // 2 + 1))


def failing(config: dict[str, Any]) -> Any:
    yield {"loss": 1.0}, 1.0
    if config["x"] == 1:
        raise ValueError("bad")
    yield {"loss": 0.5}, 1.0


@pytest.mark.parametrize(
    ("tune", "run"),
    [
        ({}, {}),
        ({}, {"failure_config": FailureConfig(max_failures=2)}),
        ({}, {"failure_config": FailureConfig(fail_fast=True)}),
        ({"time_budget_s": 1.5}, {}),
        ({}, {"stop": lambda trial_id, result: True}),
    ],
)
def test_each_trial_ends_once_on_every_path(tune: dict[str, Any], run: dict[str, Any]):
    diary = Diary()
    results = simulate(
        failing,
        param_space={"x": grid_search([0, 1, 2, 1, 0])},
        tune_config=TuneConfig(metric="loss", mode="min", **tune),
        run_config=RunConfig(callbacks=[diary], **run),
        slots=2,
    )
    ends = [entry for entry in diary.seen if entry[0] in ("on_trial_complete", "on_trial_error")]
    assert Counter(entry[1] for entry in ends) == Counter(one.trial_id for one in results)
    for name, trial_id, status, _ in ends:
        wanted = "TERMINATED" if name == "on_trial_complete" else "ERROR"
        assert status == wanted, trial_id


def test_results_can_be_added_to_for_the_callbacks_that_follow_and_nothing_else():
    class Adding(Callback):
        def on_trial_result(self, result: Any, **info: Any) -> None:
            result["added"] = True

    diary = Diary()
    results = simulate(failing, param_space={"x": 0}, run_config=RunConfig(callbacks=[Adding(), diary]))
    told = [entry[3] for entry in diary.seen if entry[0] == "on_trial_result"]
    assert all(result["added"] for result in told)
    assert all("added" not in row for row in results[0].history)


def test_a_callback_that_raises_gets_nothing_more_and_the_end_says_so(caplog: Any):
    class Broken(Diary):
        def on_trial_result(self, **told: Any) -> None:
            self.seen.append(("raised", ""))
            raise OSError("disk full")

    broken, sound = Broken(), Diary()
    results = simulate(failing, param_space={"x": 0}, run_config=RunConfig(callbacks=[broken, sound]))
    assert results.num_terminated == 1
    assert broken.seen[-1] == ("raised", "")
    assert sound.names().count("on_trial_result") == 2
    first, last = caplog.records
    assert "callback Broken raised in on_trial_result" in first.message
    assert "disk full" in first.exc_text
    assert "with disabled callbacks" in last.message
    assert "Broken (OSError in on_trial_result)" in last.message


@pytest.mark.parametrize("callbacks", [[Diary], [object()], Diary(), "Diary"])
def test_what_is_no_callback_is_refused_before_anything_starts(callbacks: Any):
    with pytest.raises(ConfigError, match="callbacks must be a list of objects"):
        simulate(failing, param_space={"x": 0}, run_config=RunConfig(callbacks=callbacks))


# When the driver dies


class Ledger(Callback):
    """Knows every result and end that it was told, in its state."""

    def __init__(self) -> None:
        self.results: list[tuple[str, int]] = []
        self.ends: list[str] = []
        self.replayed_results = 0

    def on_trial_result(self, trial: Any, result: Any, **info: Any) -> None:
        assert trial.last_result == result
        self.results.append((trial.trial_id, result["training_iteration"]))
        self.replayed_results += self.replayed

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        assert trial.status == "TERMINATED"
        self.ends.append(trial.trial_id)

    on_trial_error = on_trial_complete

    def get_state(self) -> dict[str, Any]:
        return {"results": self.results, "ends": self.ends, "told": self.replayed_results}

    def set_state(self, state: Any) -> None:
        self.results, self.ends = [tuple(pair) for pair in state["results"]], state["ends"]
        self.replayed_results = state["told"]


def with_callbacks(name: str, *callbacks: Callback, scheduler: str = "fifo") -> Lab:
    parts = parts_of(scheduler, "variants")
    parts["run_config"] = replace(parts["run_config"], callbacks=list(callbacks))
    return lab(name, **parts)


def ledger_of(place: Lab) -> Ledger:
    (ledger,) = place.run_config.callbacks
    assert not place.callbacks.failures
    return ledger


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    scheduler=st.sampled_from(["fifo", "asha"]),
    lives=st.lists(st.integers(0, 120), min_size=1, max_size=4),
)
def test_a_state_knows_each_result_and_end_once_however_often_its_driver_dies(
    scheduler: str, lives: list[int]
):
    place = with_callbacks("ledger", Ledger(), scheduler=scheduler)
    experiment = driven(place, lives)
    once_each(experiment)
    ledger = ledger_of(place)
    assert Counter(ledger.results) == Counter(
        (key, row["training_iteration"]) for key, trial in experiment.trials.items() for row in trial.history
    )
    assert sorted(ledger.ends) == sorted(experiment.trials)


def test_what_the_state_did_not_know_is_seen_as_replayed():
    place = with_callbacks("replayed", Ledger())
    with pytest.raises(Died):
        place.begin(60)
    # The state is that of the last snapshot, some results before the end of the journal.
    session = place.restore()
    missed = [hook for hook in session.missed.hooks if hook.name == "on_trial_result"]
    assert missed
    place.drive(session.experiment, session=session)
    assert ledger_of(place).replayed_results == len(missed)


class Stubborn(Ledger):
    """Its state cannot be unpickled again."""

    def get_state(self) -> dict[str, Any]:
        return {"broken": Unloadable()}


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("of another version")


def test_a_state_that_no_longer_loads_costs_only_itself(caplog: Any):
    place = with_callbacks("stubborn", Stubborn(), Ledger())
    with pytest.raises(Died):
        place.begin(70)
    assert list(Snapshots(place.storage).newest_first())  # to read one unpickles nothing
    experiment = place.resume()
    once_each(experiment)
    assert "callback Stubborn continues without its state" in caplog.text
    stubborn, ledger = place.run_config.callbacks
    assert (
        len(ledger.results)
        == len(set(ledger.results))
        == sum(len(trial.history) for trial in experiment.trials.values())
    )
    assert 0 < len(stubborn.results) < len(ledger.results)


class Gone(Ledger):
    """A callback that itself cannot be unpickled again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def test_a_callback_that_no_longer_loads_costs_only_itself(caplog: Any):
    place = with_callbacks("gone", Gone(), Ledger())
    with pytest.raises(Died):
        place.begin(70)
    experiment = place.resume()
    assert "run_config.callbacks.0 of tuner.json cannot be loaded" in caplog.text
    assert sorted(ledger_of(place).ends) == sorted(experiment.trials)


def test_a_callback_that_comes_later_gets_only_its_own_session():
    place = with_callbacks("later")
    with pytest.raises(Died):
        place.begin(70)
    diary = Diary()
    run_config = replace(place.parts["run_config"], callbacks=[diary])
    session = place.restore(run_config=run_config)
    before = sum(len(trial.history) for trial in session.experiment.trials.values())
    experiment = place.drive(session.experiment, session=session)
    heard = [entry for entry in diary.seen if entry[0] == "on_trial_result"]
    assert len(heard) + before == sum(len(trial.history) for trial in experiment.trials.values())


class Forgetful(Ledger):
    """Its state cannot be pickled."""

    def get_state(self) -> dict[str, Any]:
        return {"results": (row for row in self.results)}


def test_a_state_that_cannot_be_pickled_is_logged_once(caplog: Any):
    place = with_callbacks("forgetful", Forgetful())
    place.begin()
    assert caplog.text.count("the state of callback Forgetful cannot be stored") == 1


class Picky(Ledger):
    """Does not take back what it gave."""

    def set_state(self, state: Any) -> None:
        raise KeyError("ends")


def test_a_callback_that_does_not_take_its_state_back_is_left_out(caplog: Any):
    place = with_callbacks("picky", Picky())
    with pytest.raises(Died):
        place.begin(70)
    once_each(place.resume())
    (picky,) = place.run_config.callbacks
    assert place.callbacks.failures == {"Picky": "KeyError in set_state"}
    assert picky.results == []
    # Another session finds no state, and the callback hears of that session only.
    place.resume()
    assert "callback Picky continues without its state" in caplog.text


class Killed(BaseException):
    """The driver's process has ended, as no code catches this."""


class Epilogue(Ledger):
    """Takes down who has heard the end, outside of all drivers."""

    told: ClassVar[list[tuple[int, int]]] = []
    deadly: ClassVar[bool] = False

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        if self.deadly:
            raise Killed
        self.told.append((len(trials), len(self.ends)))


@pytest.fixture
def epilogue() -> type[Epilogue]:
    Epilogue.told.clear()
    Epilogue.deadly = False
    return Epilogue


def test_an_end_that_a_submitted_driver_died_of_comes_once_by_the_next(epilogue: type[Epilogue]):
    place = with_callbacks("epilogue", Epilogue())
    epilogue.deadly = True
    with pytest.raises(Killed):
        place.begin()
    epilogue.deadly = False
    assert epilogue.told == []
    position = place.restore().end.position
    for _ in range(2):
        results = run_driver(cloudpickle.dumps(submitted(place)), "")
        # It has heard of each trial's end before.
        assert epilogue.told == [(len(results), len(results))]
    assert place.restore().end.position == position


def test_an_end_that_has_come_does_not_come_from_the_next_driver(epilogue: type[Epilogue]):
    place = with_callbacks("told", Epilogue())
    place.begin()
    run_driver(cloudpickle.dumps(submitted(place)), "")
    assert len(epilogue.told) == 1


def test_a_resumed_experiment_has_an_end_of_its_own_to_report(epilogue: type[Epilogue]):
    place = with_callbacks("two-ends", Epilogue())
    place.begin()
    session = place.restore()
    assert not session.missed.is_end_missed
    place.drive(session.experiment, session=session)
    assert len(epilogue.told) == 2
    assert not place.restore().missed.is_end_missed


class Requester(Callback):
    """Requests a checkpoint at results of its choice."""

    def __init__(self, *iterations: int) -> None:
        self.iterations = iterations
        self.saved: list[int] = []

    def on_trial_result(self, result: Any, **info: Any) -> None:
        if result["training_iteration"] in self.iterations:
            result["should_checkpoint"] = True

    def on_checkpoint(self, trial: Any, **info: Any) -> None:
        self.saved.append(trial.last_result["training_iteration"])


def six_steps(config: dict[str, Any], checkpoint: Any) -> Any:
    for number in range(checkpoint or 0, 6):
        yield {"n": number, "should_checkpoint": number == config.get("own")}, 10.0, number + 1


def test_a_callback_can_request_a_checkpoint_by_a_key_of_the_result():
    requester = Requester(1, 4)
    simulate(six_steps, run_config=RunConfig(callbacks=[requester]), saves_on_demand=True)
    # Results stream: the next step of a simulated trial is under way when its result arrives.
    assert requester.saved == [3, 6]


def test_a_request_for_a_trial_that_waits_saves_the_result_where_it_waits():
    requester = Requester(2)
    # A function as a stop criterion is asked at each result, so each one waits.
    run_config = RunConfig(callbacks=[requester], stop=lambda trial_id, result: result["n"] == 3)
    simulate(six_steps, run_config=run_config, saves_on_demand=True)
    assert requester.saved == [2]


def test_a_result_that_has_a_checkpoint_is_not_requested_again():
    requester = Requester(1)
    run_config = RunConfig(callbacks=[requester])
    simulate(six_steps, param_space={"own": 0}, run_config=run_config, saves_on_demand=True)
    assert requester.saved == [1]


def test_a_request_for_a_checkpoint_is_in_the_journal_and_is_replayed():
    store = MemoryStore()
    simulate(six_steps, run_config=RunConfig(callbacks=[Requester(1)]), saves_on_demand=True, store=store)
    assert store.journal.count(b'"TrialCheckpointRequested"') == 1
    assert store.journal.count(b'"CheckpointTrial"') == 1
