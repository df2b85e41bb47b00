"""Trials by hand, and a floor on which a scheduler that pauses them is obeyed to the letter."""

from __future__ import annotations

from functools import cache
from typing import Any

from dasktune.schedulers import Pause, Stop, StopOther, Waiting
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

ITERATION = "training_iteration"


@cache
def trial(number: int) -> Trial:
    resources = PlacementGroupFactory([{"CPU": 1}])
    return Trial(trial_id=f"a_{number:05d}", config={}, resources=resources)


def result(t: Any, score: Any, metric: str = "acc") -> dict[str, Any]:
    return {ITERATION: t, metric: score}


class Floor:
    """Does what a scheduler says, as the experiment would, and says who is where.

    Trials are known by their numbers.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.pending: set[int] = set()
        self.running: set[int] = set()
        self.paused: set[int] = set()
        #: Why each was stopped, or that it ended by itself.
        self.ended: dict[int, str] = {}

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.scheduler.on_trial_add(trial(number))
            self.pending.add(number)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.pending.discard(number)
            self.paused.discard(number)
            self.running.add(number)
            self.scheduler.on_trial_start(trial(number))

    def start_all(self) -> None:
        """Start every trial that the scheduler chooses."""
        while (chosen := self.chosen()) is not None:
            self.start(chosen)

    def chosen(self) -> int | None:
        waiting = Waiting(*(self._trials(kind) for kind in (self.pending, self.paused)))
        choice = self.scheduler.choose_trial_to_run(waiting)
        again = self.scheduler.choose_trial_to_run(waiting)
        assert again is choice
        return None if choice is None else int(choice.trial_id[2:])

    def report(self, number: int, t: Any, score: Any) -> Any:
        decision = self.scheduler.on_trial_result(trial(number), result(t, score))
        if isinstance(decision, Pause):
            self.running.discard(number)
            self.paused.add(number)
        elif isinstance(decision, Stop):
            self.running.discard(number)
            self.ended[number] = decision.reason
        self.obey(decision.commands)
        if isinstance(decision, Stop):
            told = self.scheduler.on_trial_complete(trial(number), result(t, score))
            assert told == ()
        return decision

    def report_all(self, t: Any, scores: dict[int, float]) -> None:
        for number in scores:
            self.report(number, t, scores[number])

    def fail(self, number: int) -> None:
        self._gone(number, "failed")
        self.obey(self.scheduler.on_trial_error(trial(number)))

    def end(self, number: int) -> None:
        self._gone(number, "ended by itself")
        self.obey(self.scheduler.on_trial_complete(trial(number), {}))

    def remove(self, number: int) -> None:
        self._gone(number, "removed")
        self.obey(self.scheduler.on_trial_remove(trial(number)))

    def no_more(self) -> Any:
        commands = self.scheduler.on_search_end()
        self.obey(commands)
        return commands

    def obey(self, commands: Any) -> None:
        for command in commands:
            number = int(command.trial_id[2:])
            assert number not in self.ended
            if isinstance(command, StopOther):
                self._gone(number, command.reason)
                assert self.scheduler.on_trial_remove(trial(number)) == ()
            elif number in self.paused:
                self.paused.discard(number)
                self.pending.add(number)

    def _gone(self, number: int, why: str) -> None:
        for kind in (self.pending, self.running, self.paused):
            kind.discard(number)
        self.ended[number] = why

    @staticmethod
    def _trials(numbers: set[int]) -> dict[str, Trial]:
        return {trial(number).trial_id: trial(number) for number in sorted(numbers)}


def run_to_the_end(scheduler: Any, scores: list[float]) -> list[dict[int, float]]:
    """Run a cohort of trials, all at once; return the trials that reached each rung, and when."""
    floor = Floor(scheduler)
    floor.add(*range(len(scores)))
    floor.no_more()
    rungs: list[dict[int, float]] = []
    while floor.pending or floor.paused or floor.running:
        floor.start_all()
        rungs.append({})
        for number in sorted(floor.running):
            (milestone,) = scheduler.next_milestones(trial(number))
            rungs[-1][number] = milestone.value
            floor.report(number, milestone.value, scores[number])
    assert len(floor.ended) == len(scores)
    return rungs
