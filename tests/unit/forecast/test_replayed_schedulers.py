"""How the replay treats schedulers, decision by decision."""

from __future__ import annotations

import pytest

from dasktune.errors import ConfigError
from dasktune.forecast.curve_replay import CurveReplay
from dasktune.forecast.recorded_trial import FullCurve
from dasktune.schedulers import (
    Continue,
    ExploitOther,
    FIFOScheduler,
    HyperBandScheduler,
    Pause,
    PromotingASHAScheduler,
    ResizeWaiting,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import TrialStatus


def curve(number, length=3, pace=1.0):
    rows = [
        {"training_iteration": n, "time_total_s": pace * n, "loss": number + 1 / n}
        for n in range(1, length + 1)
    ]
    return FullCurve(rows, "loss", "min", {"number": number})


def replay(scheduler, *curves, workers=2):
    made = CurveReplay(scheduler, curves, workers)
    made.run()
    assert all(trial.status is TrialStatus.TERMINATED for trial in made.trials.values())
    return made


def iterations(made):
    return [trial.last_iteration for trial in made.trials.values()]


class Deciding(FIFOScheduler):
    """Decides by a function of the number of a trial and its iteration."""

    def __init__(self, decide):
        self.decide = decide
        self.removed, self.completed = [], []

    def on_trial_result(self, trial, result):
        return self.decide(trial.config["number"], result["training_iteration"]) or Continue()

    def on_trial_remove(self, trial):
        self.removed.append(trial.config["number"])
        return ()

    def on_trial_complete(self, trial, result):
        self.completed.append((trial.config["number"], result.get("training_iteration", 0)))
        return ()


def at(number, iteration, decision):
    return lambda *place: decision if place == (number, iteration) else None


def name(number):
    return f"whatif_{number:05d}"


def test_trials_without_a_decision_train_to_their_ends():
    made = replay(FIFOScheduler(), curve(0), curve(1, length=2), curve(2), workers=1)
    assert iterations(made) == [3, 2, 3]
    assert (made.iterations, made.seconds) == (8, 8.0)
    assert made.best == -1 / 3
    assert [trial.reason for trial in made.trials.values()] == ["", "", ""]


def test_nothing_is_the_best_of_no_trials():
    made = replay(FIFOScheduler())
    assert (made.iterations, made.seconds, made.best) == (0, 0.0, -float("inf"))


def test_a_free_worker_gets_the_next_trial():
    # The third trial starts after the first one: 3 s + 3 s, while the second one takes 30 s.
    made = replay(FIFOScheduler(), curve(0), curve(1, pace=10.0), curve(2))
    assert made.seconds == 30.0


def test_a_stop_ends_a_trial_at_its_result():
    scheduler = Deciding(at(1, 2, Stop("enough")))
    made = replay(scheduler, curve(0), curve(1))
    assert iterations(made) == [3, 2]
    assert made.trials[name(1)].reason == "enough"
    assert scheduler.completed == [(1, 2), (0, 3)]


def test_a_paused_trial_continues_where_it_was_after_the_pending_ones():
    made = replay(Deciding(at(0, 1, Pause("waits"))), curve(0), curve(1), curve(2), workers=1)
    assert iterations(made) == [3, 3, 3]
    assert made.seconds == 9.0
    assert made.trials[name(0)].incarnation == 2
    assert made.trials[name(0)].pause_reason == "waits"


def test_a_trial_that_pauses_at_its_last_result_ends_when_it_is_resumed():
    made = replay(Deciding(at(0, 3, Pause("waits"))), curve(0), curve(1))
    assert iterations(made) == [3, 3]
    assert made.trials[name(0)].incarnation == 2


def test_another_trial_is_stopped_whether_it_runs_or_waits():
    running = Deciding(at(0, 1, Continue(commands=(StopOther(trial_id=name(1), reason="worse"),))))
    assert iterations(replay(running, curve(0), curve(1, pace=2.0), curve(2))) == [3, 0, 3]
    waiting = Deciding(at(0, 1, Continue(commands=(StopOther(trial_id=name(2), reason="worse"),))))
    made = replay(waiting, curve(0), curve(1, pace=2.0), curve(2))
    assert iterations(made) == [3, 3, 0]
    assert waiting.removed == [2]
    assert made.trials[name(2)].reason == "worse"


def test_a_trial_that_its_own_command_stops_is_stopped_once():
    own = Deciding(at(0, 1, Continue(commands=2 * (StopOther(trial_id=name(0), reason="worse"),))))
    assert iterations(replay(own, curve(0), curve(1))) == [1, 3]
    assert own.completed == [(0, 1), (1, 3)]


class Streaming(Deciding):
    """Lets trials wait for no decision."""

    def next_milestones(self, trial):
        return ()


def test_decisions_before_a_milestone_are_carried_out_too():
    stop_other = Continue(commands=(StopOther(trial_id=name(1), reason="worse"),))
    assert iterations(replay(Streaming(at(0, 2, stop_other)), curve(0), curve(1, pace=2.0))) == [3, 0]
    assert iterations(replay(Streaming(at(0, 2, Stop("enough"))), curve(0), curve(1))) == [2, 3]


def test_only_a_paused_trial_is_unpaused():
    def decide(number, iteration):
        if (number, iteration) == (0, 1):
            return Pause("waits")
        return Continue(commands=(Unpause(trial_id=name(0)), Unpause(trial_id=name(1))))

    assert iterations(replay(Deciding(decide), curve(0), curve(1))) == [3, 3]


class Asking(Deciding):
    """Asks what to do with paused trials, and unpauses them when it has the answer."""

    def __init__(self):
        super().__init__(lambda number, iteration: Pause("asks") if iteration == 1 else None)
        self.open = {}

    def choose_trial_to_run(self, waiting):
        return next(iter(waiting.pending.values()), None)

    @property
    def questions(self):
        return self.open

    def on_trial_result(self, trial, result):
        if result["training_iteration"] == 1:
            self.open[len(self.open)] = lambda: trial.trial_id
        return super().on_trial_result(trial, result)

    def on_answer(self, number, answer):
        del self.open[number]
        return (Unpause(trial_id=answer),)


def test_questions_are_answered_at_once():
    assert iterations(replay(Asking(), curve(0), curve(1), curve(2), workers=1)) == [3, 3, 3]


def test_trials_that_nothing_resumes_are_stopped_at_the_end():
    class Forgetful(Asking):
        questions = {}  # noqa: RUF012 - the class never asks

    made = replay(Forgetful(), curve(0), curve(1))
    assert iterations(made) == [1, 1]
    assert "never chose it to run again" in made.trials[name(0)].reason


def test_promotions_and_cohorts_end():
    for scheduler in (PromotingASHAScheduler(max_t=9, reduction_factor=3), HyperBandScheduler(max_t=9)):
        scheduler.set_search_properties("loss", "min")
        made = replay(scheduler, *(curve(number, length=9) for number in range(20)), workers=3)
        assert iterations(made)[0] == 9
        assert made.best == -1 / 9
        assert made.iterations < 180


BIG = PlacementGroupFactory([{"CPU": 4}])


@pytest.mark.parametrize(
    ("command", "does"),
    [
        (ExploitOther(trial_id=name(1), donor=name(0), config={}, reason="better"), "clones trials"),
        (ResizeWaiting(trial_id=name(1), resources=BIG), "changes the resources"),
    ],
)
def test_commands_that_change_other_trials_are_refused(command, does):
    with pytest.raises(ConfigError, match=f"got Deciding, which {does}"):
        replay(Deciding(at(0, 1, Continue(commands=(command,)))), curve(0), curve(1))
