from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from dasktune.cluster.protocol.wire_messages import Assignment, Request, TrialReport, TrialUpdate
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.trainable.reporting.trial_messages import StopAnswer, Stopped


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


def test_too_much_news_comes_in_several_calls_and_nobody_is_left_out(actor):
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
