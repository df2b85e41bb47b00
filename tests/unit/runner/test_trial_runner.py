from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from runner_kit import FAIL, REPORT, SAVE, Bench

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig
from dasktune.runner import RunInline, SystemClock
from dasktune.runner.ports import dispatch
from dasktune.runner.replay import event_of, replay
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, Pause
from dasktune.search import BasicVariantGenerator, Searcher
from dasktune.testing import ManualClock
from dasktune.trial.actions import TrialAction
from dasktune.trial.events import ClusterChanged, TrialLost, TrialStarted
from dasktune.trial.resources import ElasticPlacement, HostPlacement
from dasktune.trial.status import TrialStatus


class Watcher:
    """Writes down what it sees; raises, or does something, at one kind of event."""

    def __init__(self, at: str = "", do: Any = None) -> None:
        self.at = at
        self.do = do
        self.seen: list[str] = []
        self.ends = 0

    def on_event(self, event: Any, handled: Any, experiment: Any) -> None:
        self.seen.append(type(event).__name__)
        if type(event).__name__ == self.at:
            self.do()

    def on_end(self, experiment: Any) -> None:
        self.ends += 1


def fail() -> None:
    raise RuntimeError("no space for logs")


class Learning(Searcher):
    """A searcher like any other that is asked for one configuration at a time."""

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": 1}


class Deciding(FIFOScheduler):
    def __init__(self, *decisions: Any) -> None:
        self.decisions = list(decisions)

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        return self.decisions.pop(0) if self.decisions else Continue()


def test_what_workers_have_is_noted_as_sums_only_when_these_change():
    bench = Bench()
    several = {f"tcp://w{i}:1": {"CPU": 0.1, f"only-here-{i:03}": 1} for i in range(100)}
    offers = [
        {"tcp://a:1": {"CPU": 2, "memory": 8}, "tcp://b:1": {"CPU": 1}},
        {"tcp://c:1": {"CPU": 2, "memory": 8}, "tcp://b:1": {"CPU": 1}},
        several,
    ]
    bench.executor.events += [ClusterChanged(workers=one, time=1.0) for one in offers]
    bench.run()
    first, second = (one for one in bench.journal if one["event"] == "CapacityChanged")
    assert first["capacity"] == {"CPU": 3, "memory": 8}
    assert first["num_workers"] == 2
    assert second["num_workers"] == 100
    assert second["capacity"]["CPU"] == 10
    # A worker may declare what no other one has.
    assert len(second["capacity"]) == 16
    assert event_of(first).capacity == first["capacity"]
    # Whether it was told or not leads to the same.
    for records in (bench.journal, [one for one in bench.journal if one not in (first, second)]):
        again = Bench().experiment
        replay(again, records, lambda folder: {})
        assert again.state_dict()["trials"] == bench.experiment.state_dict()["trials"]


def test_a_trial_runs_from_suggestion_to_end():
    bench = Bench().run()
    assert bench.events == [
        "Suggested",
        "ResourcesGranted",
        "Suggested",
        "TrialStarted",
        "ResultReported",
        "ResultReported",
        "TrialEnded",
    ]
    (trial,) = bench.experiment.trials.values()
    assert trial.status is TrialStatus.TERMINATED
    assert [row["training_iteration"] for row in trial.history] == [1, 2]
    assert bench.store.params == {trial.trial_id: {"x": 7}}
    assert not bench.runner.interrupted


def test_as_many_trials_start_as_there_is_room_for():
    bench = Bench(num_samples=3, places=2).run()
    starts = [i for i, name in enumerate(bench.events) if name == "ResourcesGranted"]
    ends = [i for i, name in enumerate(bench.events) if name == "TrialEnded"]
    assert starts[1] < ends[0] < starts[2]
    assert len(ends) == 3


class ByHand(FIFOScheduler):
    """Chooses the first, too, but that is its own affair."""

    def choose_trial_to_run(self, waiting: Any) -> Any:
        return super().choose_trial_to_run(waiting)


def starts_before_an_end(bench: Bench) -> int:
    return bench.events[: bench.events.index("TrialEnded")].count("ResourcesGranted")


class Thinking(Learning):
    """A searcher that takes a second for each configuration."""

    clock: ManualClock

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.clock.advance_to(self.clock.now() + 1.0)
        return super().suggest(trial_id)


def test_trials_that_run_report_while_a_search_thinks_about_the_next():
    searcher = Thinking()
    bench = Bench(search_alg=searcher, num_samples=3, places=3)
    searcher.clock = bench.clock
    bench.run()
    assert bench.events[: bench.events.index("TrialStarted")].count("ResourcesGranted") == 1


def test_trials_are_prefetched_where_their_order_is_certain():
    assert starts_before_an_end(Bench(num_samples=5, ahead=2).run()) == 3
    # A decision might change which one is next.
    assert starts_before_an_end(Bench(num_samples=5, ahead=2, scheduler=ByHand()).run()) == 1


def test_a_searcher_that_learns_sees_a_result_before_the_next_trial_starts():
    searcher = Learning()
    assert starts_before_an_end(Bench(num_samples=5, ahead=2, search_alg=searcher).run()) == 1


def test_the_executor_is_asked_for_events_for_one_poll_interval():
    assert set(Bench().run().executor.timeouts) == {0.25}


class Pondering(RunInline):
    """Answers at each tenth look."""

    looks = 0

    def answers(self) -> Any:
        self.looks += 1
        return [] if self.looks % 10 else super().answers()


def test_while_a_search_thinks_the_fewest_ranks_of_an_elastic_trial_are_enough():
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    bench = Bench(search_alg=Learning(), num_samples=2, background=Pondering, request=request)
    impossible: list[float] = []

    def has_resources(wanted: Any) -> bool:
        # After the first start the cluster loses half of its workers and never gets them back.
        room = 4 if "TrialEnded" not in bench.events else 2
        fits = len(wanted.bundles) <= room and not bench.executor.runs
        if fits or bench.executor.runs:
            impossible.clear()
        else:
            impossible.append(bench.clock.now())
        # An executor on a cluster raises after some time.
        assert not impossible or impossible[-1] - impossible[0] < 1.0
        return fits

    bench.executor.has_resources = has_resources
    bench.run()
    assert bench.events.count("TrialEnded") == 2


def test_a_trial_that_a_search_thinks_about_is_expected_to_request_all_ranks():
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    bench = Bench(search_alg=Learning(), num_samples=2, background=Pondering, request=request)
    bench.executor.has_resources = lambda wanted: len(wanted.bundles) <= 2 and not bench.executor.runs
    shown: list[int] = []

    def note_waiting(wanted: Any, count: int) -> None:
        # The first trial runs with two ranks; the search thinks about the second.
        if wanted is not None and bench.executor.runs:
            shown.append(len(wanted.bundles))

    bench.executor.note_waiting = note_waiting
    bench.run()
    assert bench.events.count("TrialEnded") == 2
    assert set(shown) == {4}


def test_workers_are_wanted_for_trials_that_would_leave_for_more_ranks():
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    bench = Bench(script=[SAVE] * 200, request=request)
    bench.executor.has_resources = lambda wanted: len(wanted.bundles) <= 2 and not bench.executor.runs
    bench.executor.can_prefetch = lambda wanted: False
    while bench.clock.now() < 60:
        bench.runner.step()
        assert not bench.executor.growing
    while bench.clock.now() < 80:
        bench.runner.step()
    assert bench.executor.growing == list(bench.experiment.trials)
    bench.runner.commands.hold()
    bench.runner.step()
    assert not bench.executor.growing
    bench.runner.commands.release()
    bench.runner.step()
    bench.runner.step()
    assert bench.executor.growing
    bench.runner.interrupt()
    bench.run()
    assert not bench.executor.growing


def test_no_trial_leaves_for_more_ranks_while_the_user_lets_none_start():
    request = ElasticPlacement(HostPlacement([{"CPU": 1}] * 4), 2, 4)
    bench = Bench(script=[REPORT] * 200, request=request)
    bench.executor.has_resources = lambda wanted: len(wanted.bundles) <= 2 and not bench.executor.runs
    bench.executor.can_prefetch = lambda wanted: False
    bench.executor.room_instead = True
    while "TrialStarted" not in bench.events:
        bench.runner.step()
    bench.runner.commands.hold()
    while bench.clock.now() < 100:
        bench.runner.step()
    assert "grow" not in [call[0] for call in bench.executor.calls]
    bench.runner.commands.release()
    bench.run()
    assert [call[0] for call in bench.executor.calls].count("grow") == 1


# The journal comes first


def test_the_executor_gets_how_many_trials_wait_for_room():
    bench = Bench(places=2, num_samples=6)
    bench.runner.step()
    assert bench.executor.waiting == 4
    bench.run()
    assert bench.executor.waiting == 0


def test_suggestions_ahead_of_their_trials_wait_until_nothing_else_happens():
    bench = Bench(places=2, num_samples=100)
    bench.runner.step()
    # The third one shows that there is no room for it.
    assert bench.events == ["Suggested", "ResourcesGranted"] * 2 + ["Suggested", "TrialStarted"]
    assert bench.executor.waiting == BasicVariantGenerator.lookahead
    bench.executor.events.clear()
    bench.runner.step()
    assert bench.events.count("Suggested") == 3
    bench.runner.step()
    assert bench.events.count("Suggested") == 2 + BasicVariantGenerator.lookahead
    assert bench.executor.waiting == BasicVariantGenerator.lookahead


def test_no_trial_waits_for_room_while_an_interrupted_experiment_ends():
    bench = Bench(places=2, num_samples=6)
    bench.runner.step()
    withdraw, waiting = bench.executor.withdraw, []

    def withdraw_when_none_waits():
        waiting.append(bench.executor.waiting)
        withdraw()

    bench.executor.withdraw = withdraw_when_none_waits
    bench.runner.interrupt()
    bench.run()
    assert waiting == [0]


class OneByOne(BasicVariantGenerator):
    """Is asked for the next trial only when there is room for it."""

    lookahead = 1


@pytest.mark.parametrize(("places", "waiting"), [(0, 1), (1, 1), (4, 4), (7, 3)])
def test_of_trials_that_were_not_asked_for_as_many_wait_as_run_already(places, waiting):
    bench = Bench(places=places, num_samples=10, search_alg=OneByOne())
    bench.runner.step()
    assert bench.executor.waiting == waiting


def test_of_a_search_without_end_as_many_trials_wait_as_run_already():
    bench = Bench(places=3, num_samples=-1, search_alg=OneByOne())
    bench.runner.step()
    assert bench.executor.waiting == 3


@pytest.mark.parametrize(("search", "waiting"), [(BasicVariantGenerator, 3), (OneByOne, 1)])
def test_no_more_trials_wait_for_room_than_may_run(search, waiting):
    limit = 5 if search is BasicVariantGenerator else 3
    bench = Bench(places=2, num_samples=20, search_alg=search(), max_concurrent_trials=limit)
    bench.runner.step()
    assert bench.executor.waiting == waiting


def test_messages_are_acknowledged_only_when_the_journal_is_safe():
    bench = Bench(lag=2)
    bench.runner.step()
    while not bench.experiment.finished:
        said = len(bench.journal)
        bench.runner.step()
        assert len(bench.executor.acknowledged()) <= max(0, said - 2)
    assert bench.executor.acknowledged() == [1, 2]


def test_what_was_not_safe_yet_is_acknowledged_at_the_end():
    bench = Bench(lag=1000).run()
    assert bench.executor.acknowledged() == [1, 2, 3, 4]
    assert bench.store.calls[-2:] == ["commit, forced", "close"]
    calls = [call[0] for call in bench.executor.calls]
    assert calls.index("acknowledge") > calls.index("close")


def test_messages_are_acknowledged_with_their_incarnation():
    bench = Bench(
        script=(REPORT, FAIL), run_config=RunConfig(failure_config=FailureConfig(max_failures=1))
    ).run()
    told = [call[2:] for call in bench.executor.calls if call[0] == "acknowledge"]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]


def test_a_store_that_breaks_ends_the_run_and_everything_is_closed():
    bench = Bench()

    def broken(force: bool = False) -> int:
        raise OSError("disk full")

    bench.store.commit = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        bench.run()
    assert bench.executor.closed
    assert bench.store.calls == ["close"]


def test_an_executor_that_cannot_close_costs_no_record():
    watcher = Watcher()
    bench = Bench(lag=1000, observers=[watcher])

    def broken() -> None:
        raise OSError("no cluster")

    bench.executor.close = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no cluster"):
        bench.run()
    assert bench.store.calls[-2:] == ["commit, forced", "close"]
    assert watcher.ends == 1


# What is decided is carried out


def test_each_decision_reaches_the_executor():
    scheduler = Deciding(Continue(save=True), Pause("others first"))
    bench = Bench(script=(SAVE, SAVE, REPORT), scheduler=scheduler).run()
    did = [call[0] for call in bench.executor.calls if call[0] != "acknowledge"]
    assert did == ["start", "save", "pause", "restore", "continue", "close"]
    (trial,) = bench.experiment.trials.values()
    assert [row["training_iteration"] for row in trial.history] == [1, 2, 3]


def test_expired_checkpoints_are_deleted_by_the_store():
    kept = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1))
    bench = Bench(script=(SAVE, SAVE, SAVE), run_config=kept).run()
    assert [record.index for record in bench.store.deleted] == [0, 1]


def test_a_failure_is_written_where_a_person_can_read_it():
    bench = Bench(script=(FAIL,)).run()
    (trial,) = bench.experiment.trials.values()
    assert bench.store.errors == {trial.trial_id: ["Traceback: bad"]}
    assert trial.status is TrialStatus.ERROR


def test_a_lost_worker_is_warned_of(caplog):
    bench = Bench()
    bench.runner.step()
    (trial,) = bench.experiment.trials.values()
    bench.executor.events.clear()
    lost = TrialLost(trial_id=trial.trial_id, incarnation=1, time=1.0, reason="it left")
    bench.executor.events.append(lost)
    bench.executor.runs.clear()
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert caplog.messages == [f"trial {trial.trial_id} lost its worker: it left"]
    assert [call[0] for call in bench.executor.calls].count("start") == 2


def test_of_a_trial_that_has_lost_a_worker_only_what_is_known_is_left_at_the_end():
    kept = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1))
    bench = Bench(num_samples=2, script=(SAVE, SAVE), run_config=kept)
    bench.runner.step()
    first, *_ = bench.experiment.trials.values()
    bench.executor.events.clear()
    lost = TrialLost(trial_id=first.trial_id, incarnation=1, time=1.0, reason="it left")
    bench.executor.events.append(lost)
    bench.executor.runs.clear()
    bench.run()
    assert first.losses == 1
    assert bench.store.settled == {first.trial_id: {first.checkpoints[-1].path}}


def test_a_search_that_waits_is_not_asked_at_every_turn():
    bench = Bench(num_samples=2, places=2, max_concurrent_trials=1).run()
    # Two trials, and the end.
    assert bench.events.count("Suggested") == 3
    assert bench.events.count("TrialEnded") == 2


# Observers


def test_observers_see_every_event_in_order_and_the_end():
    watcher = Watcher()
    bench = Bench(observers=[watcher]).run()
    assert [name for name in watcher.seen if name != "TimePassed"] == bench.events
    assert watcher.seen[0] == "TimePassed"
    assert watcher.ends == 1


def test_at_its_end_the_scheduler_says_what_it_has_done(caplog):
    with caplog.at_level(logging.INFO):
        Bench().run()
    assert caplog.messages[-1] == "FIFOScheduler"


def test_an_observer_that_raises_is_logged_and_not_called_again(caplog):
    broken, sound = Watcher("ResultReported", fail), Watcher()
    bench = Bench(observers=[broken, sound]).run()
    assert bench.experiment.finished
    assert broken.seen[-1] == "ResultReported"
    assert (broken.ends, sound.ends) == (0, 1)
    assert sound.seen.count("ResultReported") == 2
    (record,) = caplog.records
    assert "is not called again" in record.message
    assert "no space for logs" in caplog.text


def test_an_observer_may_raise_at_the_end(caplog):
    watcher = Watcher()
    watcher.on_end = lambda experiment: fail()  # type: ignore[method-assign]
    bench = Bench(observers=[watcher]).run()
    assert bench.store.calls[-1] == "close"
    assert "is not called again" in caplog.text


# How it ends early


def test_an_interrupt_leaves_trials_unfinished_and_closes_everything():
    watcher = Watcher("ResultReported")
    bench = Bench(observers=[watcher], num_samples=2)
    watcher.do = bench.runner.interrupt
    bench.run()
    assert bench.runner.interrupted
    assert bench.executor.closed
    assert bench.store.calls[-2:] == ["commit, forced", "close"]
    assert [trial.status for trial in bench.experiment.trials.values()] == [
        TrialStatus.PENDING,
        TrialStatus.PENDING,
    ]
    assert bench.journal[-1]["event"] == "TrialLost"
    assert bench.store.snapshots.keys() == {len(bench.journal)}
    assert watcher.ends == 1


def test_a_stop_ends_every_trial_and_the_journal_says_why():
    watcher = Watcher("ResultReported")
    bench = Bench(observers=[watcher], num_samples=2)
    watcher.do = lambda: bench.runner.stop("enough")
    bench.run()
    assert not bench.runner.interrupted
    assert {trial.status for trial in bench.experiment.trials.values()} == {TrialStatus.TERMINATED}
    stop = next(record for record in bench.journal if record["event"] == "StopRequested")
    assert stop["reason"] == "enough"
    assert [action["do"] for action in stop["actions"]] == ["StopTrial", "FinishTrial"]


def test_an_exception_from_the_search_closes_everything():
    bench = Bench()

    def broken(trial_id: str) -> Any:
        raise ValueError("no model")

    bench.experiment.search.next_trial = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no model"):
        bench.run()
    assert bench.executor.closed
    assert bench.store.calls[-1] == "close"


def test_a_time_budget_ends_everything_although_nothing_happens():
    bench = Bench(time_budget_s=10)

    def silent(action: Any) -> None:
        bench.executor.runs[action.trial_id] = [action.incarnation, 0, 0, 0]
        bench.executor.tell(action.trial_id, TrialStarted, worker="w")

    bench.executor.start_trial = silent  # type: ignore[method-assign]
    bench.run()
    assert bench.experiment.state.stop_reason == "the time budget of 10 s is used up"
    assert 10 <= bench.clock.now() < 12
    assert bench.events[-2:] == ["TimePassed", "TrialStopped"]


def test_time_that_changes_nothing_is_not_worth_a_record():
    bench = Bench()
    bench.executor.places = 0
    for _ in range(5):
        bench.runner.step()
    assert bench.events == ["Suggested", "Suggested"]


def test_the_system_clock_tells_epoch_seconds_and_never_goes_back():
    clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert first <= second
    assert abs(first - time.time()) < 60


def test_an_action_that_no_port_carries_out_is_an_error():
    action = TrialAction(trial_id="a", incarnation=1)
    with pytest.raises(TypeError, match="no port carries out TrialAction"):
        dispatch(action, None, None)  # type: ignore[arg-type]


def test_stopping_and_interrupting_wake_a_loop_that_waits_for_events():
    bench = Bench()
    bench.runner.stop_soon("enough")
    assert bench.executor.calls == [("wake",)]
    bench.runner.interrupt()
    assert bench.executor.calls == [("wake",)] * 2
    assert bench.runner.interrupted


@pytest.mark.parametrize("by", ["ann@node7 (SIGINT)", ""])
def test_an_interrupt_is_recorded_once_if_its_issuer_is_known(by: str):
    bench = Bench()
    bench.runner.interrupt(by=by)
    # The second one has lost the race.
    bench.runner.interrupt(by=by and "bob@node7 (SIGTERM)")
    bench.run()
    records = [one for one in bench.journal if one["event"] == "InterruptRequested"]
    assert [one["by"] for one in records] == ([by] if by else [])


def test_a_message_that_comes_again_is_acknowledged_again():
    bench = Bench()
    once, seen = bench.executor.next_events, set()

    def twice(timeout: float) -> Any:
        # The first acknowledgement is lost, so the worker repeats the message.
        events = once(timeout)
        for event in events:
            if event.seq not in seen:
                seen.add(event.seq)
                bench.executor.events.appendleft(event)
        return events

    bench.executor.next_events = twice
    bench.run()
    assert bench.executor.acknowledged()[:6] == [1, 1, 2, 2, 3, 3]
