from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from dasktune.cluster import station as station_module
from dasktune.cluster.envelope import Assignment, News, Note, Request
from dasktune.cluster.station import Station
from dasktune.trainable.messages import StopNow, Stopped


class Slot:
    """Gives every trial a turn that has something to say, for ever."""

    def __init__(self):
        self.may_begin = {}

    def take(self, turn):
        self.may_begin[turn.assignment.incarnation] = turn.may_begin
        if not turn.may_begin:
            return
        turn.news = lambda: News(incarnation=turn.assignment.incarnation, messages=((1, b"1234"),))


@pytest.fixture
def station():
    loop = SimpleNamespace(call_later=None, remove_timeout=None)
    plugin = SimpleNamespace(slots={"slot": Slot()}, stations={})
    return Station.of(SimpleNamespace(loop=loop), plugin, "topic", 60.0)


def assignments(*incarnations, slot="slot"):
    return tuple(Assignment(incarnation=i, slot=slot, spec=None, config=b"") for i in incarnations)


def told(reply):
    return [news.incarnation for news in reply.news]


def test_one_call_brings_the_news_of_all_trials(station):
    reply = station.exchange(Request(number=1, assignments=assignments("a", "b", "c")))
    assert told(reply) == ["a", "b", "c"]
    assert not reply.more


def test_a_trial_that_is_done_is_not_spoken_of_and_never_begun_again(station):
    station.exchange(Request(number=1, assignments=assignments("a", "b")))
    done = Request(number=2, done=("a", "unknown"))
    assert told(station.exchange(done)) == ["b"]
    late = Request(number=1, assignments=assignments("a", "b"))
    assert told(station.exchange(late)) == ["b"]


def test_too_much_news_comes_in_several_calls_and_nobody_is_left_out(station, monkeypatch):
    monkeypatch.setattr(station_module, "_LARGEST_REPLY", 8)
    first = station.exchange(Request(number=1, assignments=assignments("a", "b", "c", "d", "e")))
    assert (told(first), first.more) == (["a", "b"], True)
    assert told(station.exchange(Request(number=2))) == ["c", "d"]
    assert told(station.exchange(Request(number=3))) == ["e", "a"]


def test_a_slot_that_is_not_there_is_named(station):
    reply = station.exchange(Request(number=1, assignments=assignments("a", slot="gone")))
    assert reply.refused == (("a", "there is no slot gone here"),)
    assert reply.news == ()
    # The answer may have got lost on its way.
    again = Request(number=1, assignments=assignments("a", slot="gone"))
    assert station.exchange(again).refused == reply.refused
    assert station.exchange(Request(number=2)).refused == ()


def test_a_trial_that_is_stopped_on_its_way_is_never_begun(station):
    stop = Note(incarnation="a", ack=0, have=0, answers=(StopNow(),))
    reply = station.exchange(
        Request(number=1, assignments=assignments("a", "b"), notes=(stop,)),
    )
    assert station._plugin.slots["slot"].may_begin == {"a": False, "b": True}
    stopped, running = reply.news
    assert pickle.loads(stopped.messages[0][1]) == Stopped(seq=1)
    assert running.incarnation == "b"
