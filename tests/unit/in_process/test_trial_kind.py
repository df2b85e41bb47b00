"""Trials of a user's own kind on the simulated executor."""

from __future__ import annotations

from typing import Any

from dasktune.testing import ManualClock, SimulatedTrialExecutor, TrialKind
from dasktune.trial.actions import PauseTrial, RestoreTrial, StartTrial, StopTrial
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory


class Counting(TrialKind):
    """Counts; keeps its checkpoints as text."""

    saves_on_demand = True
    saves_at_end = True

    def __init__(self, *, takes_turns: bool = False) -> None:
        self.takes_turns = takes_turns
        self.begun: list[Any] = []
        self.steps: list[int] = []
        self.milestones: list[bool] = []

    def begin(self, config: Any, checkpoint: Any, is_milestone: Any) -> Any:
        self.begun.append(checkpoint)
        state = {"step": int(checkpoint or 0)}
        while True:
            state["step"] += 1
            self.steps.append(state["step"])
            result = {"training_iteration": state["step"]}
            self.milestones.append(is_milestone(result))
            yield result, 1.0, state

    def kept(self, state: Any) -> str:
        return str(state["step"])


def begin(kind: TrialKind, *milestones: int, checkpoints: Any = None) -> SimulatedTrialExecutor:
    executor = SimulatedTrialExecutor(kind, clock=ManualClock(), checkpoints=checkpoints)
    executor.start_trial(
        StartTrial(
            trial_id="t",
            incarnation=1,
            config={},
            resources=PlacementGroupFactory([{"CPU": 1}]),
            milestones=tuple(Milestone("training_iteration", at) for at in milestones),
        )
    )
    return executor


def told(executor: SimulatedTrialExecutor, count: int) -> list[str]:
    return [type(executor.next_events(1.0)[0]).__name__ for _ in range(count)]


def test_a_kind_says_how_its_checkpoints_are_kept():
    kind, checkpoints = Counting(), {}
    executor = begin(kind, 2, checkpoints=checkpoints)
    told(executor, 3)
    executor.pause_trial(PauseTrial(trial_id="t", incarnation=1, save=True, kind=CheckpointKind.PERSISTENT))
    (committed,) = executor.next_events(1.0)
    assert list(checkpoints.values()) == ["2"]
    told(executor, 1)
    executor.restore(
        RestoreTrial(
            trial_id="t",
            incarnation=2,
            config={},
            resources=PlacementGroupFactory([{"CPU": 1}]),
            milestones=(),
            checkpoint=committed.checkpoint,
            next_checkpoint=1,
        )
    )
    told(executor, 2)
    assert kind.begun == [None, "2"]
    assert kind.steps[:3] == [1, 2, 3]


def test_a_trial_learns_for_which_results_the_driver_waits():
    kind = Counting()
    told(begin(kind, 2), 3)
    assert kind.milestones == [False, True]


def test_a_kind_may_be_saved_before_it_ends():
    kind, checkpoints = Counting(), {}
    executor = begin(kind, 1, checkpoints=checkpoints)
    told(executor, 2)
    executor.stop_trial(StopTrial(trial_id="t", incarnation=1, reason="enough"))
    assert told(executor, 2) == ["CheckpointCommitted", "TrialStopped"]
    assert list(checkpoints.values()) == ["1"]


def test_a_kind_may_take_its_next_step_only_when_its_last_was_taken_in():
    ahead, in_turns = Counting(), Counting(takes_turns=True)
    told(begin(ahead), 2)
    executor = begin(in_turns)
    told(executor, 2)
    assert (ahead.steps, in_turns.steps) == ([1, 2], [1])
    # So it can still be stopped where it stands.
    executor.stop_trial(StopTrial(trial_id="t", incarnation=1, reason="enough"))
    assert told(executor, 2) == ["CheckpointCommitted", "TrialStopped"]
    assert in_turns.steps == [1]


def test_a_trial_that_is_taken_off_meanwhile_takes_no_step():
    kind = Counting(takes_turns=True)
    executor = begin(kind)
    told(executor, 2)
    executor.withdraw()
    executor.close()
    assert executor.next_events(1.0) == []
    assert kind.steps == [1]
