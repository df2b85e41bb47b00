"""Questions of a scheduler, and who thinks about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

import pytest
from runner_kit import Bench

from dasktune.runner import BackgroundThread, RunInline
from dasktune.schedulers import Command, FIFOScheduler, Pause, Unpause
from dasktune.search import Searcher
from dasktune.trial.trial import Trial


def raises() -> Any:
    raise ZeroDivisionError("no data")


def answers(background: BackgroundThread) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    while not found:
        found += background.answers()
    return found


def test_at_once_means_when_the_answers_are_wanted():
    background = RunInline()
    calls: list[int] = []
    background.submit(1, lambda: calls.append(1) or [0.5])
    assert not calls
    assert background.answers() == [(1, [0.5])]
    assert background.answers() == []
    background.submit(2, raises)
    background.close()
    assert background.answers() == []


def test_a_thread_thinks_while_none_waits_and_keeps_the_order():
    background, gate = BackgroundThread(), Event()
    background.submit(1, lambda: gate.wait(30))
    background.submit(2, lambda: "second")
    assert background.answers() == []
    gate.set()
    found = answers(background)
    found += answers(background) if len(found) < 2 else []
    assert found == [(1, True), (2, "second")]
    background.close()


@pytest.mark.parametrize("kind", [RunInline, BackgroundThread])
def test_a_question_that_raises_is_logged_and_answered_by_none(kind: Any, caplog: pytest.LogCaptureFixture):
    background = kind()
    background.submit(7, raises)
    assert answers(background) == [(7, None)]
    background.close()
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "question 7 of the scheduler raised" in record.message
    assert record.exc_info


def test_a_thread_that_is_closed_begins_no_other_question():
    background, has_begun, gate = BackgroundThread(), Event(), Event()
    calls: list[int] = []
    background.submit(1, lambda: has_begun.set() or gate.wait(30))
    background.submit(2, lambda: calls.append(2))
    assert has_begun.wait(30)
    background.close()
    gate.set()
    assert answers(background) == [(1, True)]
    assert not calls


class Asking(FIFOScheduler):
    """Pauses its trials at their first result, and asks when none runs whether to resume them."""

    def __init__(self) -> None:
        self.is_open = False
        self.heard: list[Any] = []

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Any:
        return (
            Pause("to think") if result["training_iteration"] == 1 else super().on_trial_result(trial, result)
        )

    def choose_trial_to_run(self, waiting: Any) -> Trial | None:
        return next(iter(waiting.pending.values()), None)

    def on_standstill(self, waiting: Any) -> tuple[Command, ...]:
        self.is_open = True
        return ()

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        return {3: lambda: ["continue"]} if self.is_open else {}

    def on_answer(self, number: int, answer: Any) -> tuple[Command, ...]:
        self.is_open = False
        self.heard.append((number, answer))
        return tuple(Unpause(trial_id=key) for key in self.trials)

    def observe(self, view: Any) -> None:
        self.trials = view.trials


class Constant(Searcher):
    """Is asked whether there is another trial only when the first has left its place."""

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": 1}


class Slow(RunInline):
    """Needs some rounds of the runner for each question."""

    is_taken = False

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.asked: list[int] = []
        self.is_closed = False

    def submit(self, number: int, question: Callable[[], Any]) -> None:
        self.asked.append(number)
        super().submit(number, question)

    def answers(self) -> Sequence[tuple[int, Any]]:
        self.rounds -= 1
        return [] if self.rounds >= 0 else super().answers()

    def close(self) -> None:
        self.is_closed = True

    def alone(self, wake: Callable[[], None]) -> RunInline:
        """Return itself to its first caller, the scheduler, and another one for the search."""
        self.is_taken, was_taken = True, self.is_taken
        return RunInline() if was_taken else self


def test_a_question_is_asked_once_and_its_answer_is_an_event_of_the_journal():
    scheduler = Asking()
    background = Slow(rounds=5)
    bench = Bench(
        scheduler=scheduler,
        background=background.alone,
        search_alg=Constant(),
        max_concurrent_trials=1,
    )
    bench.run()
    assert background.asked == [3]
    assert background.is_closed
    assert bench.experiment.scheduler.heard == [(3, ["continue"])]
    [record] = [one for one in bench.journal if one["event"] == "Answered"]
    assert (record["number"], record["answer"]) == (3, ["continue"])
    assert [one["do"] for one in record["actions"]] == ["UnpauseTrial"]
    # Nothing but time had passed when it was asked; a replay must ask it there, too.
    assert bench.events[bench.events.index("Answered") - 1] == "TimePassed"
    assert bench.events.count("TimePassed") == 1
