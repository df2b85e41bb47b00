"""A search that is asked beside the loop, and what the loop does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from runner_kit import REPORT, Bench

from dasktune.experiment import ExperimentMachine
from dasktune.runner import RunInline
from dasktune.search import BasicVariantGenerator, Searcher


class Learning(Searcher):
    """Writes down what it hears, and must not hear anything while it is asked."""

    def __init__(self, most: int = 10**9) -> None:
        super().__init__()
        self.most = most
        self.suggested: list[str] = []
        self.ended: list[str] = []
        self.saved = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if len(self.suggested) - len(self.ended) >= self.most:
            return None
        self.suggested.append(trial_id)
        return {"y": len(self.suggested)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.ended.append(trial_id)

    def state_dict(self) -> dict[str, Any]:
        self.saved += 1
        return {}


class Pondering(RunInline):
    """Thinks for some rounds of the loop about each question, and then until it is `ready`."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = self.left = rounds
        self.asked: list[Any] = []
        self.ready: Callable[[], bool] = lambda: True

    def submit(self, name: Any, question: Callable[[], Any]) -> None:
        self.left = self.rounds
        self.asked.append(name)
        super().submit(name, question)

    def answers(self) -> Sequence[tuple[Any, Any]]:
        self.left -= 1
        return super().answers() if self.left < 0 and self.ready() else []


def bench(search: Any, rounds: int = 0, observers: Any = (), **kwargs: Any) -> tuple[Bench, Pondering]:
    backgrounds: list[Pondering] = []

    def make(wake: Callable[[], None]) -> Pondering:
        # The first is the scheduler's.
        backgrounds.append(Pondering(rounds))
        return backgrounds[-1]

    made = Bench(search_alg=search, observers=observers, background=make, **kwargs)
    return made, backgrounds[-1]


def test_results_are_judged_while_the_search_thinks():
    made, _ = bench(Learning(), rounds=9, num_samples=2)
    events = made.run().events
    asked = [at for at, name in enumerate(events) if name == "SuggestionAsked"]
    answered = [at for at, name in enumerate(events) if name == "Suggested"]
    assert len(asked) == len(answered) == 3
    assert {"ResultReported", "TrialEnded"} <= set(events[asked[1] : answered[1]])


def test_the_next_trial_is_there_before_there_is_a_place_for_it():
    made, _ = bench(Learning(), rounds=2, num_samples=3)
    events = made.run().events
    end = events.index("TrialEnded")
    assert events[:end].count("Suggested") == 2
    # No further ahead than one: nothing is asked for while another one waits.
    assert events[:end].count("SuggestionAsked") == 2
    assert events[end + 1] == "ResourcesGranted"


def test_a_search_that_answers_at_once_is_just_asked():
    made, background = bench(BasicVariantGenerator(), rounds=5, num_samples=2)
    assert "SuggestionAsked" not in made.run().events
    assert background.asked == []


def test_the_search_gets_the_ends_after_its_answer():
    search = Learning(most=1)
    made, _ = bench(search, rounds=9, num_samples=3)
    made.run()
    assert search.suggested == search.ended == list(made.experiment.trials)


def test_what_a_search_raises_is_raised_in_the_loop():
    class Broken(Learning):
        def suggest(self, trial_id: str) -> dict[str, Any]:
            raise SystemExit("no such model")

    made, _ = bench(Broken(), rounds=3)
    with pytest.raises(SystemExit, match="no such model"):
        made.run()
    assert made.executor.closed
    assert made.events == ["SuggestionAsked"]


def test_no_snapshot_is_taken_of_a_search_that_thinks():
    search = Learning()
    made, background = bench(search, rounds=4, num_samples=6)
    while not made.experiment.finished:
        # One is always due.
        made.clock.advance_to(made.clock.now() + 20)
        before = search.saved
        thinks = made.experiment.pending_suggestion.is_open and background.left > 0
        made.runner.step()
        assert not (thinks and search.saved > before)
    assert search.saved > 5


class Interrupting:
    """Interrupts the runner at the first result, or has it stop."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.runner: Any = None

    def on_event(self, event: Any, handled: Any, experiment: Any) -> None:
        if type(event).__name__ == "ResultReported":
            getattr(self.runner, self.how)(*(["enough"] if self.how == "stop_soon" else []))

    def on_end(self, experiment: Any) -> None:
        pass


def ended(how: str, ready: Callable[[ExperimentMachine], bool]) -> tuple[Bench, Learning]:
    search, watcher = Learning(), Interrupting(how)
    made, background = bench(search, rounds=0, observers=[watcher], num_samples=9)
    watcher.runner = made.runner
    made.runner.step()
    # One trial has started and another one waits: the next is asked for when that has a place.
    background.ready = lambda: ready(made.experiment)
    made.executor.places = 2
    made.run()
    return made, search


def test_who_interrupts_does_not_wait_for_a_search_that_thinks():
    made, _ = ended("interrupt", lambda experiment: False)
    assert made.runner.interrupted
    assert made.experiment.pending_suggestion.is_open
    assert made.store.snapshots == {}


def test_an_answer_that_comes_with_an_interrupt_is_not_lost():
    made, search = ended("interrupt", lambda experiment: not experiment.trial_index.active)
    assert not made.experiment.pending_suggestion.is_open
    assert list(made.experiment.trials) == search.suggested
    assert len(made.store.snapshots) == 1


def test_who_stops_waits_a_second_for_a_search_that_thinks(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "dasktune")
    made, search = ended("stop_soon", lambda experiment: False)
    assert made.experiment.finished
    assert search.ended == []
    assert made.executor.timeouts[-1] == pytest.approx(1.0)
    assert "is still computing a suggestion after" in caplog.text


def test_a_search_that_answers_in_time_gets_how_its_trials_were_stopped():
    made, search = ended("stop_soon", lambda experiment: experiment.finished)
    assert sorted(search.ended) == search.suggested == list(made.experiment.trials)


def test_the_trial_that_is_thought_about_waits_for_room_like_the_others():
    made, _ = bench(Learning(), rounds=3, num_samples=6, script=[REPORT] * 9)
    waiting = []
    while not made.experiment.finished:
        made.runner.step()
        waiting.append((made.executor.waiting, made.experiment.pending_suggestion.is_open))
    # What the first will ask for is unknown, and the last answer is that there is no other.
    assert waiting[0] == (0, True)
    assert {count for count, _ in waiting[4:-12]} == {1}
    assert any(is_open for _, is_open in waiting[4:-12])
    assert waiting[-1] == (0, False)


def test_none_waits_for_room_where_there_is_some():
    made, _ = bench(Learning(), rounds=9, num_samples=4, places=3)
    while not made.experiment.finished:
        made.runner.step()
        assert made.executor.waiting == 0
