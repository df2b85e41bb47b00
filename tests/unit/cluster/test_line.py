from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dasktune.cluster import line as line_module
from dasktune.cluster.envelope import Reply, Request
from dasktune.cluster.line import Line, WorkerLost
from dasktune.cluster.listener import Listener
from dasktune.cluster.run import Run
from dasktune.cluster.slot_handle import SlotFailed


class Slot:
    """Does not answer so many times, and each time takes a while about it."""

    is_cancelled = False

    def __init__(self, failures, seconds):
        self.failures = failures
        self.seconds = seconds
        self.passed = 0.0

    async def exchange(self, request):
        if self.failures:
            self.failures -= 1
            self.passed += self.seconds
            raise SlotFailed("no answer")
        return Reply(news=(), more=False, refused=())


def call(slot, monkeypatch):
    """Call a worker that is given up after 30 seconds of silence."""
    monkeypatch.setattr(line_module, "_RETRY_PAUSE", 0.0)

    async def work():
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + slot.passed)
        line = Line(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=1.0,
            now=loop.time,
            interval=lambda: (1.0, 0.0),
            listener=Listener(
                emit=print,
                on_haul=print,
                on_end=print,
                on_memory=print,
            ),
        )
        line.runs["a"] = SimpleNamespace(assigned=True, seat=SimpleNamespace(slot=slot))
        await line._call(Request(number=1, window=0.0, assignments=(), notes=(), done=()))
        return line.answered - loop.time()

    return asyncio.run(work())


def test_a_worker_that_is_silent_for_too_long_is_given_up(monkeypatch):
    with pytest.raises(WorkerLost, match="no answer"):
        call(Slot(failures=100, seconds=5.0), monkeypatch)


def test_a_worker_that_answers_at_last_is_not(monkeypatch):
    assert call(Slot(failures=6, seconds=5.0), monkeypatch) == pytest.approx(0.0, abs=1.0)


def test_the_sleep_of_the_driver_is_no_silence_of_the_worker(monkeypatch):
    assert call(Slot(failures=1, seconds=3600.0), monkeypatch) == pytest.approx(0.0, abs=1.0)


def losses(runs, *, charged=True, shared=False):
    """Return of each run whether its loss counts and was shared, when the worker dies."""
    told = {}

    async def work():
        line = Line(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=1.0,
            now=lambda: 0.0,
            interval=lambda: (1.0, 0.0),
            listener=Listener(
                emit=print,
                on_haul=print,
                on_memory=print,
                on_end=lambda line, run, end: told.update(
                    {run.trial_id: (end.charged, end.shared)}
                ),
            ),
        )
        line.runs.update(runs)
        line.lose("it died", charged=charged, shared=shared)
        await line.talk()

    asyncio.run(work())
    return told


def run_on(seat, name, *, assigned=True):
    run = Run(trial_id=name, incarnation=1, key=name, spec=None, config=b"", assigned=assigned)
    run.seat = seat
    seat.runs.append(run)
    return run


class FakeSeat(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self):
        super().__init__(slot=None, runs=[])


def test_a_worker_s_death_is_shared_by_the_trials_that_had_begun_there():
    alone = run_on(FakeSeat(), "alone")
    assert losses({"alone": alone}) == {"alone": (True, False)}
    early = run_on(FakeSeat(), "early", assigned=False)
    assert losses({"alone": alone, "early": early}) == {
        "alone": (True, False),
        "early": (False, False),
    }
    other = run_on(FakeSeat(), "other")
    assert losses({"alone": alone, "other": other}) == {
        "alone": (True, True),
        "other": (True, True),
    }


def test_a_worker_s_death_is_shared_with_trials_elsewhere_that_needed_it():
    alone = run_on(FakeSeat(), "alone")
    assert losses({"alone": alone}, shared=True) == {"alone": (True, True)}


def test_what_was_left_behind_shares_no_death():
    alone, left = run_on(FakeSeat(), "alone"), run_on(FakeSeat(), "left")
    left.told = True
    runs = {"alone": alone, "left": left}

    async def count():
        line = Line(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=1.0,
            now=lambda: 0.0,
            interval=lambda: (1.0, 0.0),
            listener=Listener(
                emit=print,
                on_haul=print,
                on_memory=print,
                on_end=print,
            ),
        )
        line.runs.update(runs)
        return line.suspects

    assert asyncio.run(count()) == 1
