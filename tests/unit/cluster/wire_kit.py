"""A driver's link and a worker's endpoint on a wire that loses, repeats and delays.

Both ends are real, and so are the trials, in threads of their own. But only one thread moves at a
time, and the clock jumps: every example is the same each time, and takes milliseconds.
"""

from __future__ import annotations

import asyncio
import pickle
import selectors
import threading
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import cloudpickle

from dasktune.cluster.driver.actor_handle import ActorCallFailed
from dasktune.cluster.driver.trial_run import Reservation, TrialRun
from dasktune.cluster.driver.worker_link import LinkCallbacks, WorkerLink
from dasktune.cluster.protocol.wire_messages import dumps, open_reply
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.cluster.worker.trial_actor import TrialActor
from dasktune.placement import PlacedBundle, Placement
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.session import report
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.reporting.milestone_gate import MilestoneGate
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.trial_messages import ContinueAnswer, PauseAnswer, StopAnswer
from dasktune.trainable.running.thread_run import ThreadRun
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.events import (
    ResultReported,
    TrialStarted,
)
from dasktune.trial.resources import PlacementGroupFactory

PATIENCE = 30.0
RESOURCES = PlacementGroupFactory([{"CPU": 1}])

# Threads that move one at a time.


class Turnstile:
    """Lets a trial's thread run, while the loop's waits until the other one rests again."""

    def __init__(self):
        self._rests = threading.Event()

    def rest(self):
        """Say, in the trial's thread, that it is about to wait or to end."""
        self._rests.set()

    def settle(self):
        """Wait, in the loop's thread, for the other one, which something has just set going."""
        assert self._rests.wait(PATIENCE), "a trial neither waits nor ends"
        self._rests.clear()


class WatchedGate(MilestoneGate):
    """Where a trial rests until an answer comes."""

    turnstile: Turnstile
    is_awaited = False

    def wait(self):
        if not self._is_open():
            self.is_awaited = True
            self.turnstile.rest()
        return super().wait()

    def answer(self, answer):
        super().answer(answer)
        if self.is_awaited and self._is_open():
            self.is_awaited = False
            self.turnstile.settle()

    def _is_open(self):
        return self._order is not None or self._answer is not None


class WatchedOutbox(Outbox):
    """Where a trial rests until there is room; each time that the driver comes it looks again."""

    turnstile: Turnstile
    is_full = is_awaited = False

    def _has_room(self):
        self.is_full = not super()._has_room()
        return not self.is_full

    def _notify_if_more_urgent(self, urgency):
        super()._notify_if_more_urgent(urgency)
        if self.is_full:
            self.is_full, self.is_awaited = False, True
            self.turnstile.rest()

    def collect(self, ack, received):
        messages = super().collect(ack, received)
        self._settle()
        return messages

    def lift_bound(self):
        super().lift_bound()
        self._settle()

    def _settle(self):
        if self.is_awaited:
            self.is_awaited = False
            self.turnstile.settle()


class SteppedRun(ThreadRun):
    """A real run that moves only as long as the loop waits for it."""

    def __init__(self, spec, opener, ring, fence, *, reusable, on_end, room):
        def end():
            on_end()
            self.turnstile.rest()

        gate, outbox = WatchedGate(spec.milestones), WatchedOutbox(ring, max_messages=room)
        self.turnstile = gate.turnstile = outbox.turnstile = Turnstile()
        super().__init__(spec, opener, ring, fence, reusable=reusable, on_end=end, outbox=outbox, gate=gate)
        self.trial = trials[spec.trial_id]
        self.trial.run = self

    def start(self):
        super().start()
        self.turnstile.settle()

    def answer(self, answer):
        if isinstance(answer, StopAnswer | PauseAnswer) and self.trial.reports_when_ordered is None:
            self.trial.reports_when_ordered = self.trial.reports
        super().answer(answer)


class Trial:
    """What one trial does, and what came of it."""

    def __init__(self, name, plan, loop):
        self.name = name
        self.plan = plan
        self.loop = loop
        self.run = None
        self.begun = self.reports = 0
        self.reports_when_ordered = None
        #: Whether it was told to leave; what it reports after that is not to be recorded.
        self.has_left = False
        self.is_abandoned = False
        self.events = []
        #: Number of the result that waits for an answer which has not been given.
        self.unanswered = None
        self._awake = threading.Event()

    def perform(self):
        self.begun += 1
        for number, seconds in enumerate(self.plan.pauses, 1):
            self._sleep(seconds)
            self.reports += not self.has_left
            try:
                report({"number": number})
            except TrialInterrupted:
                self.has_left = True
                if not self.plan.is_stubborn:
                    raise
        if self.plan.fails:
            raise ValueError("as planned")

    def _sleep(self, seconds):
        if seconds and not self.is_abandoned:
            self.loop.call_later(seconds, self._wake)
            self.run.turnstile.rest()
            assert self._awake.wait(PATIENCE)
            self._awake.clear()

    def _wake(self):
        self._awake.set()
        self.run.turnstile.settle()

    def abandon(self):
        """End its thread, whatever it does."""
        self.is_abandoned = True
        if self.run is not None:
            self.run.turnstile.settle = lambda: None
            self._awake.set()
            self.run.answer(StopAnswer())
            assert self.run.join(PATIENCE)


#: The trials of the example, by name: what is pickled cannot hold them.
trials = {}


def perform(config):
    trials[config["name"]].perform()


# Time that jumps.


class Jump(selectors.SelectSelector):
    """Never waits: the loop's time jumps instead."""

    def select(self, timeout=None):
        assert timeout is not None, "everybody waits for ever"
        self.loop.now += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """Jumps to its next timer at once."""

    def __init__(self):
        self.now = 0.0
        jump = Jump()
        jump.loop = self
        super().__init__(jump)

    def time(self):
        return self.now


# The worker, the wire and the driver.


def run_virtually(work):
    """Run a coroutine in virtual time, and return its result."""
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class FakeFuture:
    """As much of a Dask future as leases and actors need, for a task of this process."""

    def __init__(self, task):
        self.task = task

    @property
    def status(self):
        if not self.task.done():
            return "pending"
        return "cancelled" if self.task.cancelled() else "finished"

    def __await__(self):
        return asyncio.shield(self.task).__await__()

    def cancelled(self):
        return self.task.cancelled()

    async def cancel(self):
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def exception(self):
        await asyncio.wait([self.task])


class UnwatchedEndpoint(WorkerEndpoint):
    """Does without the watch over the driver, which needs a loop in real time."""

    def start_watch(self):
        pass


class Worker:
    """As much of a Dask worker as two actors need."""

    def __init__(self, loop, ring, largest_reply):
        payload = cloudpickle.dumps({"trainable": perform})
        self.plugin = SimpleNamespace(actors={}, endpoints={}, payload=payload, shared={})
        self.plugins = {"plugin": self.plugin}
        self.handlers = {}
        self.address = "tcp://worker"
        self.state = SimpleNamespace(actors={"actor-0": None, "actor-1": None})
        self.loop = SimpleNamespace(
            add_callback=loop.call_soon,
            call_later=loop.call_later,
            remove_timeout=lambda handle: handle.cancel(),
        )
        self.log_event = lambda topic, told: ring()
        self.plugin.endpoints["topic"] = UnwatchedEndpoint(
            self, self.plugin, "topic", float("inf"), largest_reply=largest_reply
        )


#: Seconds to the worker and back.
_PROMPT = (0.001, 0.001)


class Wire:
    """Takes calls to a actor and loses, repeats and delays some of them, as planned."""

    def __init__(self, key, actor, fates):
        self.key = key
        self.lease = None
        self.is_cancelled = False
        self._actor = actor
        self._fates = fates
        self._tasks = set()

    async def poll(self, request, deadline_s):
        blob = dumps(request)
        fate, before, after = next(self._fates, ("arrives", *_PROMPT))
        if fate == "late":
            # As all of these, it may come when the driver has got much further.
            late = asyncio.ensure_future(self._deliver_late(blob, 4 * before))
            self._tasks.add(late)
        await asyncio.sleep(before)
        if fate not in ("late", "request lost"):
            answer = await self._actor.poll(blob)
            await asyncio.sleep(after)
            if fate == "repeated":
                answer = await self._actor.poll(blob)
            if fate != "reply lost":
                return open_reply(answer)
        raise ActorCallFailed(fate)

    async def _deliver_late(self, blob, seconds):
        await asyncio.sleep(seconds)
        await self._actor.poll(blob)


class Driver:
    """Hands trials to the link, decides at their milestones, and notes what it hears."""

    def __init__(self, plan, loop):
        self.plan = plan
        self.loop = loop
        self.is_over = asyncio.Event()
        self._bells = iter(plan.bells)
        worker = self._worker = Worker(loop, self._ring, plan.largest_reply)
        self.link = WorkerLink(
            worker.address,
            heartbeat_timeout=float("inf"),
            stop_grace=float("inf"),
            now=loop.time,
            interval=lambda: (1.0, plan.window),
            callbacks=LinkCallbacks(
                emit=self._hear,
                on_transfer=print,
                on_end=self._on_end,
                on_memory=print,
                on_unrestored=print,
            ),
        )
        fates = iter(plan.fates)
        self._wires = [Wire(key, self._make_slot(key), fates) for key in worker.state.actors]
        bundle = PlacedBundle(address=worker.address, resources={"CPU": 1}, declared={})
        placement = Placement(number=1, bundles=(bundle,))
        self._reservations = [
            Reservation(placement=placement, resources=RESOURCES, actor=wire, ready=True)
            for wire in self._wires
        ]
        self._runs = {}

    def _make_slot(self, key):
        for_ever = dict.fromkeys(("driver_ttl", "fence_after", "stop_grace"), float("inf"))
        make_run = partial(SteppedRun, room=self.plan.room)
        return TrialActor(
            key, plugin="plugin", topic="topic", worker=self._worker, make_run=make_run, **for_ever
        )

    def serve(self, trial):
        plan = trial.plan
        if self.link.is_lost:
            self._note_end(trial, None)
            return
        spec = TrialSpec(
            trial_id=trial.name,
            incarnation=1,
            resources=RESOURCES,
            storage=Storage("memory://wire"),
            trial_dir=trial.name,
            experiment_name="wire",
            trial_name=trial.name,
            milestones=plan.milestones[0],
        )
        config = pickle.dumps({"config": {"name": trial.name}})
        run = TrialRun(trial_id=trial.name, incarnation=1, key=f"{trial.name}-1", spec=spec, config=config)
        run.reservation = self._reservations[plan.actor]
        run.reservation.runs.append(run)
        self._runs[trial.name] = self.link.runs[run.key] = run
        self.link.assign(run)
        if plan.order is not None:
            self.loop.call_later(plan.order_after, self._answer, trial, plan.order)
        if plan.other_dies is not None:
            self.loop.call_later(plan.other_dies, self._abandon, run)

    def _hear(self, events):
        for event in events:
            self._take(event)

    def _take(self, event):
        trial = trials[event.trial_id]
        assert not trial.unanswered, "it continued without an answer"
        trial.events.append(event)
        self.loop.call_later(self.plan.ack_after, self._acknowledge, event)
        if isinstance(event, ResultReported) and event.awaits:
            count = sum(isinstance(e, ResultReported) and e.awaits for e in trial.events)
            trial.unanswered = event.seq
            self.loop.call_later(trial.plan.think, self._decide, trial, event.seq, count)

    def _abandon(self, run):
        if run.key in self.link.runs:
            self.link.abandon(run, "another worker died", charged=True, shared=False)

    def _acknowledge(self, event):
        run = self._runs[event.trial_id]
        run.durable_seq = max(run.durable_seq, event.seq)

    def _decide(self, trial, seq, count):
        choices = trial.plan.milestones
        order = trial.plan.order
        if order is not None and count == trial.plan.order_at:
            self._answer(trial, order)
        else:
            milestones = choices[min(count, len(choices) - 1)]
            self._answer(trial, ContinueAnswer(seq=seq, milestones=milestones))

    def _answer(self, trial, answer):
        run = self._runs[trial.name]
        trial.unanswered = None
        # As the experiment does: an order stands, and is given once.
        if run.key in self.link.runs and run.order is None:
            self.link.answer(run, answer)

    def _on_end(self, link, run, end):
        run.reservation.runs.remove(run)
        self._note_end(trials[run.trial_id], end)

    def _note_end(self, trial, end):
        trial.events.append(end)
        if all(t.events and not is_open(t.events[-1]) for t in trials.values()):
            self.is_over.set()

    def _ring(self):
        seconds = next(self._bells, 0.0)
        if seconds is not None:
            self.loop.call_later(seconds, self.link.wake)

    async def run(self):
        talk = asyncio.ensure_future(self.link.poll_loop())
        for trial in trials.values():
            self.loop.call_later(trial.plan.at, self.serve, trial)
        if self.plan.dies is not None:
            self.loop.call_later(self.plan.dies, self.link.mark_lost, "died")
        over = asyncio.ensure_future(self.is_over.wait())
        await asyncio.wait([over, talk], timeout=1000, return_when=asyncio.FIRST_COMPLETED)
        if talk.done():
            # Not by an exception of its own.
            await talk
        await asyncio.wait_for(over, 10)
        self.link.mark_lost("the end")
        await talk


async def play(plan, loop):
    """Run an example, and drop what is still under way then, such as calls that come too late."""
    await Driver(plan, loop).run()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def is_open(event):
    return isinstance(event, TrialStarted | ResultReported)
