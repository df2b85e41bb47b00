from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace

import pytest

from dasktune.cluster.driver.actor_handle import ActorCallFailed
from dasktune.cluster.driver.trial_run import TrialRun
from dasktune.cluster.driver.worker_link import LinkCallbacks, WorkerLink
from dasktune.cluster.protocol.wire_messages import Reply, TrialReport
from dasktune.trainable.reporting.trial_messages import PauseAnswer, StopAnswer, Unrestored
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.events import RestoreFailed, TrialLost, TrialPaused, TrialStopped


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its clock stands still until it is put forward."""

    skipped = 0.0

    def time(self):
        return self.skipped


class Slot:
    """Does not answer so many times, and each time takes a while about it."""

    is_cancelled = False

    def __init__(self, failures, seconds):
        self.failures = failures
        self.seconds = seconds
        self.deadlines = []
        self.link = None

    async def poll(self, request, deadline_s):
        self.deadlines.append(deadline_s)
        if self.failures:
            self.failures -= 1
            asyncio.get_running_loop().skipped += self.seconds
            raise ActorCallFailed("no answer")
        # The link handles the answer before the loop makes this call.
        asyncio.get_running_loop().call_soon(self.link.mark_lost, "it has answered")
        return Reply(reports=(), more=False, refused=())


class Slow(Slot):
    """Answers each call after so many seconds, if the driver waits as long."""

    def __init__(self, seconds):
        super().__init__(failures=0, seconds=seconds)

    async def poll(self, request, deadline_s):
        is_late = deadline_s < self.seconds
        self.failures = int(is_late)
        asyncio.get_running_loop().skipped += 0.0 if is_late else self.seconds
        seconds, self.seconds = self.seconds, min(self.seconds, deadline_s)
        try:
            return await super().poll(request, deadline_s)
        finally:
            self.seconds = seconds


def end_of_a_trial_on(actor):
    """Poll a worker that counts as lost after 30 s of silence; return why its trial was lost."""
    return [end.reason for end in ends_of_a_trial_on(actor, noticed=False)]


def ends_of_a_trial_on(actor, *, noticed):
    """Return how the trial of such a worker was lost."""
    ends = []

    async def work():
        loop = asyncio.get_running_loop()
        actor.link = link = WorkerLink(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=1.0,
            now=loop.time,
            interval=lambda: (1.0, 0.0),
            callbacks=LinkCallbacks(
                emit=print,
                on_transfer=print,
                on_end=lambda link, run, end: ends.append(end),
                on_memory=print,
                on_unrestored=print,
                is_noticed=lambda address: noticed and address == "tcp://a:1",
            ),
            retry_interval=0.0,
        )
        reservation = FakeSeat()
        reservation.actor = actor
        link.runs["a"] = run_on(reservation, "a")
        link.wake()
        await link.poll_loop()

    loop = SkippingLoop()
    loop.run_until_complete(work())
    loop.close()
    return ends


def test_a_worker_that_is_silent_for_too_long_is_lost():
    assert end_of_a_trial_on(Slot(failures=100, seconds=5.0)) == ["no answer"]


@pytest.mark.parametrize("noticed", [False, True])
def test_the_silence_of_a_worker_with_notice_counts_against_no_trial(noticed):
    [end] = ends_of_a_trial_on(Slot(failures=100, seconds=5.0), noticed=noticed)
    assert end.charged is not noticed


def test_a_worker_that_answers_at_last_is_not():
    assert end_of_a_trial_on(Slot(failures=6, seconds=4.9)) == ["it has answered"]


def test_a_worker_that_needs_longer_each_time_is_heard():
    slow = Slow(seconds=12.0)
    assert end_of_a_trial_on(slow) == ["it has answered"]
    assert slow.deadlines == [5.0, 10.0, 15.0]


def test_no_attempt_waits_longer_than_until_the_worker_counts_as_lost():
    never = Slow(seconds=3600.0)
    assert end_of_a_trial_on(never) == ["no answer"]
    assert never.deadlines == [5.0, 10.0, 15.0, 5.0]


def test_the_sleep_of_the_driver_is_no_silence_of_the_worker():
    assert end_of_a_trial_on(Slot(failures=1, seconds=3600.0)) == ["it has answered"]


def link_with(runs, on_end=print, emit=print):
    """Return a link to a worker with these runs, whose clock stands still."""
    link = WorkerLink(
        "tcp://a:1",
        heartbeat_timeout=30.0,
        stop_grace=1.0,
        now=lambda: 0.0,
        interval=lambda: (1.0, 0.0),
        callbacks=LinkCallbacks(
            emit=emit, on_transfer=print, on_memory=print, on_unrestored=print, on_end=on_end
        ),
    )
    link.runs.update(runs)
    return link


def losses(runs, *, charged=True, shared=False):
    """Return of each run whether its loss counts and was shared, when the worker dies."""
    told = {}

    async def work():
        link = link_with(
            runs, on_end=lambda link, run, end: told.update({run.trial_id: (end.charged, end.shared)})
        )
        link.mark_lost("it died", charged=charged, shared=shared)
        await link.poll_loop()

    asyncio.run(work())
    return told


def run_on(reservation, name, *, assigned=True):
    run = TrialRun(trial_id=name, incarnation=1, key=name, spec=None, config=b"", assigned=assigned)
    run.reservation = reservation
    reservation.runs.append(run)
    return run


class FakeSeat(SimpleNamespace):
    __hash__ = object.__hash__

    def __init__(self):
        super().__init__(actor=None, runs=[])


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
    left.end_reported = True
    runs = {"alone": alone, "left": left}

    async def count():
        link = link_with(runs)
        return link.suspects

    assert asyncio.run(count()) == 1


class TellingSlot:
    """Answers each poll with the trial's last message."""

    is_cancelled = False

    def __init__(self, message):
        self.message = message

    async def poll(self, request, deadline_s):
        report = TrialReport(incarnation="a", messages=((1, pickle.dumps(self.message)),))
        return Reply(reports=(report,))


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_damaged_checkpoint_ends_a_run_by_what_the_driver_finds(confirmed):
    record = CheckpointRecord(path="trials/a/checkpoint_000003_i01", index=3, iteration=4)
    message = Unrestored(seq=1, checkpoint=record, reason="it is damaged")
    ends = []

    async def work():
        loop = asyncio.get_running_loop()

        def look(link, run, found):
            # Later, as the driver reads the checkpoint meanwhile.
            loop.call_soon(lambda: link.end_unrestored(run, found, confirmed=confirmed))
            loop.call_later(0.01, link.mark_lost, "the test is over")

        link = WorkerLink(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=1.0,
            now=loop.time,
            interval=lambda: (1.0, 0.0),
            callbacks=LinkCallbacks(
                emit=print,
                on_transfer=print,
                on_end=lambda link, run, end: ends.append(end),
                on_memory=print,
                on_unrestored=look,
            ),
        )
        reservation = FakeSeat()
        reservation.actor = TellingSlot(message)
        run = link.runs["a"] = run_on(reservation, "a")
        link.wake()
        await link.poll_loop()
        assert run.not_reusable

    asyncio.run(work())
    [end] = ends
    if confirmed:
        assert isinstance(end, RestoreFailed)
        assert (end.path, end.seq, end.reason) == (record.path, 1, "it is damaged")
    else:
        assert isinstance(end, TrialLost)
        assert end.charged
        assert "tcp://a:1 cannot load a checkpoint that the driver finds intact" in end.reason


class HangingSlot:
    """Takes every order, and its trial obeys none; it notes when what was ordered."""

    is_cancelled = False

    def __init__(self, seconds):
        self.seconds = seconds
        self.seen = []

    async def poll(self, request, deadline_s):
        for update in request.updates:
            self.seen.append((len(update.answers), update.interrupt))
        # The next poll comes so many seconds later.
        asyncio.get_running_loop().skipped += self.seconds
        return Reply(reports=())


@pytest.mark.parametrize(
    ("at_once", "first", "seconds"), [(True, (1, True), 2.0), (False, (1, False), 2 * 3600.0)]
)
@pytest.mark.parametrize("noticed", [False, True])
def test_a_trial_that_is_stopped_at_once_is_interrupted_by_the_same_request(at_once, first, seconds, noticed):
    slot, took = HangingSlot(seconds / 2), []

    async def work():
        loop = asyncio.get_running_loop()
        began = loop.time()

        def on_events(events):
            (event,) = events
            took.append((event, loop.time() - began))
            link.mark_lost("the test is over")

        link = WorkerLink(
            "tcp://a:1",
            heartbeat_timeout=float("inf"),
            stop_grace=3600.0,
            now=loop.time,
            interval=lambda: (0.0, 0.0),
            callbacks=LinkCallbacks(
                emit=on_events, on_transfer=print, on_end=print, on_memory=print, on_unrestored=print
            ),
        )
        reservation = FakeSeat()
        reservation.actor, reservation.address = slot, "tcp://a:1"
        run = link.runs["a"] = run_on(reservation, "a")
        if noticed:
            # It changes nothing: the trial still has its time to clean up.
            link.notice(run, 1e6, "spot", tell=False)
        link.answer(run, StopAnswer(reason="another one failed"), at_once=at_once)
        await link.poll_loop()

    loop = SkippingLoop()
    loop.run_until_complete(work())
    loop.close()
    assert slot.seen[0] == first
    assert [interrupt for _, interrupt in slot.seen].count(True) == 2
    ((event, waited),) = took
    assert isinstance(event, TrialStopped)
    assert seconds <= waited < 2 * seconds


def test_the_driver_does_not_spin_while_a_stopped_trial_has_not_started():
    timeouts = []

    def interval():
        timeouts.append(1)
        return 3600.0, 0.0

    async def work():
        link = WorkerLink(
            "tcp://a:1",
            heartbeat_timeout=30.0,
            stop_grace=10.0,
            now=lambda: 0.0,
            interval=interval,
            callbacks=LinkCallbacks(
                emit=print, on_transfer=print, on_end=print, on_memory=print, on_unrestored=print
            ),
        )
        # Its actor is not ready.
        run = link.runs["a"] = run_on(FakeSeat(), "a", assigned=False)
        polling = asyncio.ensure_future(link.poll_loop())
        link.answer(run, StopAnswer(reason="another one failed"), at_once=True)
        for _ in range(100):
            await asyncio.sleep(0)
        link.mark_lost("the test is over")
        await polling

    asyncio.run(work())
    assert len(timeouts) <= 2


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_a_patient_pause_interrupts_user_code_only_when_the_driver_ends(is_withdrawn):
    slot, events = HangingSlot(1800.0), []

    async def work():
        loop = asyncio.get_running_loop()
        link = WorkerLink(
            "tcp://a:1",
            heartbeat_timeout=float("inf"),
            stop_grace=3600.0,
            now=loop.time,
            interval=lambda: (0.0, 0.0),
            callbacks=LinkCallbacks(
                emit=events.extend,
                on_transfer=print,
                on_end=print,
                on_memory=print,
                on_unrestored=print,
            ),
        )
        reservation = FakeSeat()
        reservation.actor, reservation.address = slot, "tcp://a:1"
        run = link.runs["a"] = run_on(reservation, "a")
        run.assigned = True
        link.answer(run, PauseAnswer(reason="a share"), is_patient=True)
        polls = loop.create_task(link.poll_loop())
        until = loop.time() + 12 * 3600
        while loop.time() < until:
            # The slot answers after half an hour of the loop's clock.
            link.wake()
            await asyncio.sleep(0)
        assert (events, run.interrupt) == ([], False)
        if is_withdrawn:
            link.withdraw(run)
            while not events:
                link.wake()
                await asyncio.sleep(0)
            # It counts as abandoned once.
            link.withdraw(run)
        link.mark_lost("the test is over")
        await polls

    loop = SkippingLoop()
    loop.run_until_complete(work())
    loop.close()
    assert [type(event) for event in events] == [TrialPaused] * is_withdrawn
    assert [interrupt for _, interrupt in slot.seen].count(True) == 2 * is_withdrawn


def test_a_message_that_arrives_again_is_one_event():
    events = []

    class Repeating(Slot):
        async def poll(self, request, deadline_s):
            self.failures += 1
            if self.failures == 3:
                self.link.mark_lost("it died")
            messages = tuple((seq, {"x": seq}) for seq in range(1, self.failures + 1))
            self.link.wake()
            return Reply(reports=(TrialReport(incarnation="a", messages=messages),), more=False, refused=())

    async def work():
        reservation = FakeSeat()
        reservation.actor = Repeating(failures=0, seconds=0.0)
        link = reservation.actor.link = link_with(
            {"a": run_on(reservation, "a")}, emit=lambda some: events.extend(some)
        )
        link.wake()
        await link.poll_loop()

    asyncio.run(work())
    assert [event.seq for event in events][:2] == [1, 2]
    assert len({event.seq for event in events}) == len(events)
