from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from dasktune.cluster.protocol.wire_messages import Assignment, Request, TrialReport, TrialUpdate
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.cluster.worker.worker_notices import NoticeReporter, WorkerNotices
from dasktune.trainable.reporting.trial_messages import (
    NoticeAnswer,
    PauseAnswer,
    Returned,
    StopAnswer,
    Stopped,
)


class Actor:
    """Gives every trial a trial that has something to say, for ever."""

    def __init__(self):
        self.is_waiting = {}

    def enqueue(self, trial):
        self.is_waiting[trial.assignment.incarnation] = trial.is_waiting
        if not trial.is_waiting:
            return
        trial.report = lambda: TrialReport(incarnation=trial.assignment.incarnation, messages=((1, b"1234"),))


@pytest.fixture
def actor():
    return Actor()


def endpoint_of(actor, **options):
    loop = SimpleNamespace(call_later=None, remove_timeout=None)
    plugin = SimpleNamespace(actors={"actor": actor}, endpoints={})
    return WorkerEndpoint(SimpleNamespace(loop=loop), plugin, "topic", 60.0, **options)


@pytest.fixture
def endpoint(actor):
    return endpoint_of(actor)


def assignments(*incarnations, actor="actor"):
    return tuple(Assignment(incarnation=i, actor=actor, spec=None, config=b"") for i in incarnations)


def told(reply):
    return [news.incarnation for news in reply.reports]


def test_one_call_brings_the_news_of_all_trials(endpoint):
    reply = endpoint.poll(Request(number=1, assignments=assignments("a", "b", "c")))
    assert told(reply) == ["a", "b", "c"]
    assert not reply.more


def test_a_trial_that_is_done_is_not_spoken_of_and_never_begun_again(endpoint):
    endpoint.poll(Request(number=1, assignments=assignments("a", "b")))
    done = Request(number=2, ended=("a", "unknown"))
    assert told(endpoint.poll(done)) == ["b"]
    late = Request(number=1, assignments=assignments("a", "b"))
    assert told(endpoint.poll(late)) == ["b"]


def test_too_much_news_comes_in_several_calls_and_none_is_left_out(actor):
    endpoint = endpoint_of(actor, largest_reply=8)
    first = endpoint.poll(Request(number=1, assignments=assignments("a", "b", "c", "d", "e")))
    assert (told(first), first.more) == (["a", "b"], True)
    assert told(endpoint.poll(Request(number=2))) == ["c", "d"]
    assert told(endpoint.poll(Request(number=3))) == ["e", "a"]


def test_a_slot_that_is_not_there_is_named(endpoint):
    reply = endpoint.poll(Request(number=1, assignments=assignments("a", actor="gone")))
    assert reply.refused == (("a", "there is no actor gone here"),)
    assert reply.reports == ()
    # The answer may have got lost on its way.
    again = Request(number=1, assignments=assignments("a", actor="gone"))
    assert endpoint.poll(again).refused == reply.refused
    assert endpoint.poll(Request(number=2)).refused == ()


def test_a_trial_that_is_stopped_on_its_way_is_never_begun(endpoint, actor):
    stop = TrialUpdate(incarnation="a", durable_seq=0, received_seq=0, answers=(StopAnswer(),))
    reply = endpoint.poll(
        Request(number=1, assignments=assignments("a", "b"), updates=(stop,)),
    )
    assert actor.is_waiting == {"a": False, "b": True}
    stopped, running = reply.reports
    assert pickle.loads(stopped.messages[0][1]) == Stopped(seq=1)
    assert running.incarnation == "b"


class NoticedRun:
    """A run that records the calls of its methods."""

    finished = occupied = is_notified = False
    in_use = True
    transfers = SimpleNamespace(pending=())

    def __init__(self):
        self.told = []

    def start(self):
        pass

    def collect(self, ack, received):
        return []

    def notice(self, seconds, reason, *, urgent=False):
        self.told.append(("notice", seconds, reason, urgent))

    def answer(self, answer):
        self.told.append(answer)

    def interrupt(self, order=None):
        self.told += ["interrupt"] if order is None else [order, "interrupt"]


class NoticedWorker:
    """A worker whose timers are called by the test, and the events that it logs."""

    address = "tcp://a:1"

    def __init__(self):
        self.timers, self.events = [], []
        self.loop = SimpleNamespace(
            call_later=lambda seconds, function, *args: self.timers.append((seconds, function, args)),
            remove_timeout=print,
        )

    def log_event(self, topic, event):
        self.events.append((topic, event))

    def fire(self):
        """Call the timers in their order, and return their times."""
        timers, self.timers = sorted(self.timers, key=lambda one: one[0]), []
        for _, function, args in timers:
            function(*args)
        return [seconds for seconds, _, _ in timers]


class BeginningActor:
    def __init__(self, run):
        self.run = run

    def enqueue(self, trial):
        if trial.is_waiting:
            trial.begin(self.run)


def noticed_endpoint(run):
    worker = NoticedWorker()
    plugin = SimpleNamespace(actors={"actor": BeginningActor(run)}, endpoints={})
    return worker, WorkerEndpoint.of(worker, plugin, "topic", 60.0)


@pytest.mark.parametrize(("seconds", "times"), [(120.0, [110.0, 115.0]), (4.0, [2.0, 3.0])])
def test_a_trial_that_does_not_save_leaves_some_time_before_the_end(seconds, times):
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    WorkerNotices.of(worker).give(seconds, "spot")
    assert run.told == [("notice", seconds, "spot", False)]
    assert worker.events[0] == (
        "topic",
        {"kind": "worker-noticed", "worker": "tcp://a:1", "seconds": seconds, "reason": "spot"},
    )
    assert worker.fire() == times
    assert run.told[1:] == [PauseAnswer(save=True, reason="spot"), "interrupt"]


def test_a_trial_that_has_left_in_time_is_not_interrupted():
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    WorkerNotices.of(worker).give(120.0, "spot")
    run.finished = True
    worker.fire()
    assert "interrupt" not in run.told


def test_a_trial_with_another_worker_that_has_notice_gets_it_from_the_driver():
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    notice = NoticeAnswer(seconds=5.0, reason="the driver ends", urgent=True)
    update = TrialUpdate(incarnation="a", durable_seq=0, received_seq=0, answers=(notice,))
    endpoint.poll(Request(number=2, updates=(update,)))
    assert run.told == [("notice", 5.0, "the driver ends", True)]
    # The driver interrupts it, or the worker ends.
    assert worker.fire() == [2.5]


def test_a_request_that_arrives_twice_interrupts_once():
    run = NoticedRun()
    _, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    order = StopAnswer(reason="stopped")
    update = TrialUpdate(incarnation="a", durable_seq=0, received_seq=0, answers=(order,), interrupt=True)
    stop = Request(number=2, updates=(update,))
    endpoint.poll(stop)
    endpoint.poll(stop)
    assert run.told == [order, "interrupt", order]
    # The driver interrupts again in a new request.
    endpoint.poll(Request(number=3, updates=(update,)))
    assert run.told[3:] == [order, "interrupt"]


def test_a_notice_that_arrives_twice_interrupts_once():
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    notice = NoticeAnswer(seconds=20.0, reason="the driver ends")
    update = TrialUpdate(incarnation="a", durable_seq=0, received_seq=0, answers=(notice,))
    for _ in range(2):
        endpoint.poll(Request(number=2, updates=(update,)))
    assert worker.fire() == [10.0, 15.0]
    assert run.told.count("interrupt") == 1


def test_two_notices_of_a_worker_interrupt_once():
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    endpoint.poll(Request(number=1, assignments=assignments("a")))
    for seconds in (120.0, 60.0):
        WorkerNotices.of(worker).give(seconds, "spot")
    worker.fire()
    assert run.told.count("interrupt") == 1


def test_a_worker_with_notice_returns_new_trials_and_reports_the_notice_again():
    run = NoticedRun()
    worker, endpoint = noticed_endpoint(run)
    WorkerNotices.of(worker).give(1e6, "spot")
    del worker.events[:]
    reply = endpoint.poll(Request(number=1, assignments=assignments("a")))
    [report] = reply.reports
    assert pickle.loads(report.messages[0][1]) == Returned()
    assert [event["kind"] for _, event in worker.events] == ["worker-noticed"]


def test_a_notice_ends_with_its_time_and_the_newest_one_counts():
    clock = [0.0]
    notices = WorkerNotices(lambda: clock[0])
    assert notices.current is None
    notices.give(100.0, "first")
    notices.give(10.0, "second")
    clock[0] = 9.0
    assert notices.current == NoticeAnswer(seconds=1.0, reason="second")
    clock[0] = 10.0
    assert notices.current is None


def test_a_worker_without_an_actor_reports_its_notice_where_it_holds_resources():
    worker = NoticedWorker()
    notices = WorkerNotices.of(worker)
    reporter = NoticeReporter.started(worker, "topic")
    assert worker.events == []
    notices.give(60.0, "spot")
    [(topic, event)] = worker.events
    assert (topic, event["kind"], event["seconds"]) == ("topic", "worker-noticed", 60.0)
    # One that begins later reports it, too, and one that has ended does not.
    later = NoticeReporter.started(worker, "later")
    assert [topic for topic, _ in worker.events] == ["topic", "later"]
    del reporter
    notices.give(30.0, "spot")
    assert [topic for topic, _ in worker.events[2:]] == ["later"]
    del later
