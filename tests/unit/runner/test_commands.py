"""Commands of other threads: what comes of them, and that none of them can hurt the run."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

import pytest
from runner_kit import REPORT, Bench

from dasktune.errors import ConfigError, ControlError, InvalidTransition
from dasktune.runner.commands import MOST_WAITING, CommandContext, CommandOutcome, Commands
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])

LONG = (REPORT,) * 9


class Running(Bench):
    """A bench whose runner takes a step when a test wants one."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**{"script": LONG, "num_samples": 2, **parts})

    def __enter__(self) -> Running:
        self._running = self.runner.running()
        self._running.__enter__()
        self.commands = self.runner.commands
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)

    def steps(self, count: int) -> Running:
        for _ in range(count):
            self.runner.step()
        return self

    def after(self, future: Any, steps: int = 1) -> Any:
        """Return what came of a command, which must be known after so many steps."""
        self.steps(steps)
        return future.result(timeout=0)

    def refused(self, future: Any) -> ControlError:
        self.steps(1)
        error = future.exception(timeout=0)
        assert isinstance(error, ControlError)
        return error

    @property
    def first(self) -> Any:
        return next(iter(self.experiment.trials.values()))

    def to_the_end(self) -> None:
        while not self.experiment.finished:
            self.runner.step()


def test_a_trial_is_stopped_where_it_runs():
    with Running() as bench:
        bench.steps(3)
        key = bench.first.trial_id
        outcome = bench.after(bench.commands.stop_trial(key, "no use"))
        assert (outcome.trial_id, outcome.status) == (key, "RUNNING")
        again = bench.after(bench.commands.stop_trial(key))
        assert "already" in again.message or again.status == "TERMINATED"
        bench.to_the_end()
        assert (bench.first.status, bench.first.reason) == (TrialStatus.TERMINATED, "no use")


def test_a_trial_rests_and_resumes():
    with Running() as bench:
        bench.steps(3)
        key = bench.first.trial_id
        assert bench.after(bench.commands.pause_trial(key)).status == "RUNNING"
        # It has not left its worker yet: that is waited for.
        waiting = bench.commands.unpause_trial(key)
        again = bench.commands.pause_trial(key)
        bench.steps(1)
        assert "already" in again.result(timeout=0).message
        while not waiting.done():
            bench.steps(1)
        assert waiting.result().status == "PENDING"
        bench.to_the_end()
        assert [bench.events.count(f"Trial{what}Requested") for what in ("Pause", "Unpause")] == [
            1,
            1,
        ]


def test_who_rests_is_waited_for():
    with Running(num_samples=1) as bench:
        bench.steps(3)
        key = bench.first.trial_id
        bench.after(bench.commands.pause_trial(key), steps=30)
        assert bench.first.status is TrialStatus.SUSPENDED
        assert "already" in bench.after(bench.commands.pause_trial(key)).message
        assert not bench.experiment.finished
        bench.after(bench.commands.unpause_trial(key))
        bench.to_the_end()


def test_a_running_trial_saves_a_checkpoint_on_command():
    with Running() as bench:
        bench.steps(3)
        key = bench.first.trial_id
        outcome = bench.after(bench.commands.checkpoint_trial(key))
        assert (outcome.trial_id, outcome.status) == (key, "RUNNING")
        assert "will save a checkpoint" in outcome.message
        assert bench.events.count("TrialCheckpointRequested") == 1
        assert bench.executor.calls.count(("checkpoint", key)) == 1
        bench.to_the_end()


def asked_to_save(status: TrialStatus) -> Future[CommandOutcome]:
    """Return what comes of the command that a trial saves a checkpoint; it must cause no event."""
    trial = Trial(trial_id="t", config={}, resources=ONE_CPU, status=status)
    experiment: Any = SimpleNamespace(trials={"t": trial})
    clock: Any = SimpleNamespace(now=lambda: 1.0)
    driver: Any = SimpleNamespace(apply_request=pytest.fail)
    commands = Commands(lambda: None)
    future = commands.checkpoint_trial("t")
    commands.handle(CommandContext(experiment, clock, lambda config: ONE_CPU, driver))
    return future


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (TrialStatus.PENDING, "is PENDING"),
        (TrialStatus.STARTING, "is starting"),
        (TrialStatus.RESTORING, "is starting"),
        (TrialStatus.PAUSED, "is PAUSED"),
        (TrialStatus.SUSPENDED, "is PAUSED"),
        (TrialStatus.PAUSING, "is leaving its worker"),
        (TrialStatus.STOPPING, "is leaving its worker"),
    ],
)
def test_a_trial_that_does_not_train_saves_no_checkpoint_on_command(status: TrialStatus, why: str):
    with pytest.raises(ControlError, match=f"trial t {why}; only a running trial can") as caught:
        asked_to_save(status).result(timeout=0)
    assert caught.value.kind == "conflict"


def test_a_trial_that_saves_already_gets_no_second_command():
    outcome = asked_to_save(TrialStatus.SAVING).result(timeout=0)
    assert outcome.message == "trial t is saving a checkpoint already"


def test_the_share_is_changed_while_the_experiment_runs():
    with Running() as bench:
        bench.steps(3)
        outcome = bench.after(bench.commands.set_share(weight=2))
        assert (outcome.message, outcome.trial_id) == ("the experiment has weight 2 on the cluster", "")
        outcome = bench.after(bench.commands.set_share(0.5, -1))
        assert outcome.message == "the experiment has weight 0.5 and priority -1 on the cluster"
        # The same again changes nothing.
        bench.after(bench.commands.set_share(priority=-1.0))
        bench.after(bench.commands.set_share(yields_after=30))
        bench.after(bench.commands.set_share(yields_after=30.0))
        assert bench.events.count("ShareRequested") == 3
        shares = [call[1:] for call in bench.executor.calls if call[0] == "share"]
        assert shares == [(2.0, None, None), (0.5, -1.0, None), (None, None, 30.0)]
        bench.to_the_end()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "weight must be given if priority and yields_after are not, got None"),
        ({"weight": 0}, "weight must be a positive finite number, got 0"),
        ({"weight": True}, "weight must be a positive finite number, got True"),
        ({"weight": float("inf"), "priority": 1}, "weight must be a positive finite number, got inf"),
        ({"weight": 1, "priority": "high"}, "priority must be a finite number, got 'high'"),
        ({"priority": float("nan")}, "priority must be a finite number, got nan"),
    ],
)
def test_an_invalid_share_is_refused(given: dict[str, Any], message: str):
    with Running() as bench:
        error = bench.refused(bench.commands.set_share(**given))
        assert (str(error), error.kind) == (message, "invalid")
        assert bench.events.count("ShareRequested") == 0


def test_a_trial_that_is_unknown_is_named():
    with Running() as bench:
        for command in ("stop_trial", "pause_trial", "unpause_trial", "checkpoint_trial"):
            error = bench.refused(getattr(bench.commands, command)("absent"))
            assert (str(error), error.kind) == ("there is no trial 'absent'", "unknown")


def test_a_trial_that_is_over_says_so():
    with Running() as bench:
        while bench.experiment.trial_index.active or not bench.experiment.trials:
            bench.steps(1)
            if bench.first.status.is_final:
                break
        for command in ("stop_trial", "pause_trial", "unpause_trial", "checkpoint_trial"):
            error = bench.refused(getattr(bench.commands, command)(bench.first.trial_id))
            assert error.kind == "over"
            assert "is over already: it is TERMINATED" in str(error)


def test_one_that_does_not_rest_cannot_resume():
    with Running() as bench:
        bench.steps(3)
        error = bench.refused(bench.commands.unpause_trial(bench.first.trial_id))
        assert (error.kind, "is not paused" in str(error)) == ("conflict", True)


def test_who_is_being_stopped_cannot_rest():
    with Running() as bench:
        bench.steps(3)
        key = bench.first.trial_id
        stop, pause = bench.commands.stop_trial(key), bench.commands.pause_trial(key)
        again = bench.commands.stop_trial(key)
        assert bench.refused(pause).kind == "conflict"
        assert stop.result(timeout=0).message == f"trial {key} will stop"
        assert again.result(timeout=0).message == f"trial {key} is being stopped already"


def test_an_added_trial_is_copied_written_down_and_run_first():
    config = {"x": 1, "more": [1]}
    with Running(num_samples=3) as bench:
        bench.steps(1)
        future = bench.commands.add_trial(config)
        outcome = bench.after(future)
        config["more"].append(2)
        trial = bench.experiment.trials[outcome.trial_id]
        assert trial.config == {"x": 1, "more": [1]} == bench.store.params[outcome.trial_id]
        assert not trial.pickled
        bench.to_the_end()
        starts = [record["trial_id"] for record in bench.journal if record["event"] == "ResourcesGranted"]
        assert starts[1] == outcome.trial_id
        assert len(starts) == 4


def test_a_configuration_that_json_cannot_tell_is_kept_as_it_is():
    with Running() as bench:
        outcome = bench.after(bench.commands.add_trial({"x": {1, 2}}))
        trial = bench.experiment.trials[outcome.trial_id]
        assert (trial.pickled, trial.config) == (True, {"x": {1, 2}})


@pytest.mark.parametrize("config", [7, None, {1: 2}, ["x"]])
def test_what_is_no_configuration_is_refused(config: Any):
    with Running() as bench:
        assert bench.refused(bench.commands.add_trial(config)).kind == "invalid"
        assert len(bench.experiment.trials) <= 2


def test_a_configuration_that_breaks_the_rule_is_refused():
    def rule(config: Any) -> None:
        raise ConfigError("config must be better")

    with Running() as bench:
        bench.commands.config_rule = rule
        error = bench.refused(bench.commands.add_trial({}))
        assert (str(error), error.kind) == ("config must be better", "invalid")


def test_nothing_starts_while_it_is_held():
    with Running() as bench:
        assert bench.after(bench.commands.hold()).message == "no trial starts until release"
        bench.after(bench.commands.hold(), steps=5)
        assert not bench.experiment.trials
        bench.after(bench.commands.release())
        bench.after(bench.commands.release())
        bench.to_the_end()
        assert [bench.events.count(f"{what}Requested") for what in ("Hold", "Release")] == [1, 1]


def test_the_experiment_is_stopped_once():
    with Running() as bench:
        bench.steps(3)
        first, second = bench.commands.stop("enough"), bench.commands.stop("too much")
        late = bench.commands.add_trial({"x": 1})
        bench.steps(1)
        assert first.result(0).message == second.result(0).message == "the experiment ends: enough"
        assert late.exception(0).kind == "over"
        bench.to_the_end()
        assert bench.events.count("StopRequested") == 1


def test_a_cancelled_run_leaves_its_trials_unfinished():
    bench = Bench(script=LONG)
    bench.runner.commands.cancel(by="ann@node7 (HTTP)")
    bench.run()
    assert bench.runner.interrupted
    assert not bench.experiment.finished
    [record] = [one for one in bench.journal if one["event"] == "InterruptRequested"]
    assert record["by"] == "ann@node7 (HTTP)"


def test_one_can_look_at_an_experiment_between_two_events():
    with Running() as bench:
        bench.steps(2)
        seen = bench.commands.ask(lambda experiment, now: (list(experiment.trials), now))
        trials, now = bench.after(seen)
        assert trials == list(bench.experiment.trials)
        assert now <= bench.clock.now()


def test_a_question_that_raises_hurts_none():
    with Running() as bench:
        error = bench.refused(bench.commands.ask(lambda experiment, now: 1 / 0))
        assert str(error) == "the command could not be carried out: ZeroDivisionError"
        bench.to_the_end()


def test_a_bug_that_a_command_meets_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(event: Any) -> None:
        raise InvalidTransition("this is unexpected")

    with Running() as bench:
        monkeypatch.setattr(bench.runner, "apply_request", broken)
        future = bench.commands.hold()
        with pytest.raises(InvalidTransition):
            bench.steps(1)
        assert isinstance(future.exception(0), InvalidTransition)


def test_a_command_that_is_cancelled_in_time_does_nothing():
    with Running() as bench:
        future = bench.commands.hold()
        assert future.cancel()
        bench.steps(1)
        assert not bench.experiment.state.on_hold


def test_waiting_commands_are_bounded_and_alternate():
    with Running() as bench:
        futures = [bench.commands.ask(lambda *_: 1) for _ in range(MOST_WAITING + 1)]
        assert futures[-1].exception(0).kind == "busy"
        bench.steps(1)
        done = sum(one.done() for one in futures[:-1])
        assert 0 < done < MOST_WAITING
        bench.steps(MOST_WAITING // done)
        assert all(one.done() for one in futures)


def test_each_command_wakes_the_runner():
    bench = Running()
    bench.runner.commands.hold()
    assert bench.executor.calls == [("wake",)]


def test_a_command_too_late_or_open_at_the_end_is_refused():
    bench = Running(num_samples=1)
    with bench:
        bench.steps(3)
        waits = bench.commands.hold()
        cancelled = bench.commands.hold()
        cancelled.cancel()
    late = bench.commands.hold()
    assert late.exception(0).kind == "over"
    assert waits.exception(0).kind == "over"
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_many_threads_may_command_at_once():
    with Running(num_samples=1) as bench:
        bench.after(bench.commands.hold())
        outcomes: list[Any] = []

        def add() -> None:
            futures = [bench.commands.add_trial({"x": 1}) for _ in range(20)]
            outcomes.extend(one.result(30) for one in futures)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            bench.steps(1)
        assert len({one.trial_id for one in outcomes}) == 80 == len(bench.experiment.trials)


def test_a_command_that_is_given_while_the_run_ends_is_answered():
    at_release = []

    class Handover:
        """A lock that another thread is given as soon as it is released."""

        def __init__(self):
            self._lock = threading.Lock()

        def __enter__(self):
            self._lock.acquire()

        def __exit__(self, *error):
            self._lock.release()
            if at_release:
                at_release.pop()()

    commands = Commands(lambda: None, make_lock=Handover)
    at_release.append(commands.close)
    error = commands.hold().exception(timeout=0)
    assert isinstance(error, ControlError)
    assert error.kind == "over"
