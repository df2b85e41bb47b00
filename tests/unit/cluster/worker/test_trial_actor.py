from __future__ import annotations

import asyncio
import functools
import pickle
import queue
import threading
import time
from types import SimpleNamespace

import cloudpickle
import pytest

from dasktune.cluster.protocol.wire_messages import (
    ACTOR_CALL,
    Assignment,
    Refused,
    Reply,
    Request,
    TransferCall,
    TrialUpdate,
    dumps,
    open_reply,
)
from dasktune.cluster.worker.endpoint import WorkerEndpoint
from dasktune.cluster.worker.trial_actor import TrialActor
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.session import report
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.checkpoints.relay import EndTransfer, GetTransfer, ReadPiece
from dasktune.trainable.reporting.encoding import decode, unpack
from dasktune.trainable.reporting.trial_messages import (
    ContinueAnswer,
    Ended,
    Failed,
    Reported,
    Returned,
    Started,
    StopAnswer,
    Stopped,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.milestone import EVERY_RESULT
from dasktune.trial.resources import PlacementGroupFactory

PATIENCE = 30.0

#: What user code of a test tells and waits for, by the test's name: it is pickled on its way.
shared: dict[str, SimpleNamespace] = {}


class Loop:
    """A worker's event loop that does what is asked of it only when a test looks."""

    def __init__(self):
        self.callbacks = queue.Queue()
        self.timers = {}

    def add_callback(self, function, *arguments):
        self.callbacks.put(functools.partial(function, *arguments))

    def call_later(self, delay, function, *arguments):
        handle = object()
        self.timers[handle] = (delay, functools.partial(function, *arguments))
        return handle

    def remove_timeout(self, handle):
        self.timers.pop(handle, None)


class Worker:
    """As much of a Dask worker as a actor needs, with one actor and its driver."""

    def __init__(self, trainable, **settings):
        payload = cloudpickle.dumps({"trainable": trainable})
        self.plugin = SimpleNamespace(actors={}, endpoints={}, leases={}, payload=payload)
        self.address = "tcp://worker"
        self.plugins = {"plugin": self.plugin}
        self.handlers = {}
        self.state = SimpleNamespace(actors={"actor-1": None})
        self.loop = Loop()
        self.rung = 0
        settings = {"driver_ttl": 60.0, "fence_after": 60.0, "stop_grace": 0.05, **settings}
        #: The endpoint's clock, which may be put forward.
        self.timer = time.monotonic
        self.plugin.endpoints["topic"] = WorkerEndpoint(
            self, self.plugin, "topic", settings["fence_after"], timer=lambda: self.timer()
        )
        self.actor = TrialActor("actor-1", plugin="plugin", topic="topic", worker=self, **settings)
        # The watch, which needs a real loop.
        self.loop.callbacks.get_nowait()
        self.trials = self.calls = 0

    def log_event(self, topic, number):
        self.rung += 1

    def assign(self, config=(), window=0.01, **spec):
        self.trials += 1
        self.key = f"t{self.trials}-1"
        self.messages = []
        values = {
            "trial_id": f"t{self.trials}",
            "incarnation": 1,
            "resources": PlacementGroupFactory([{"CPU": 1}]),
            "storage": Storage("memory://actors"),
            "trial_dir": "dir",
            "experiment_name": "exp",
            "trial_name": "name",
            "milestones": (),
            "checkpoint_at_end": False,
        }
        blob = pickle.dumps({"config": dict(config)})
        assignment = Assignment(
            incarnation=self.key, actor="actor-1", spec=TrialSpec(**{**values, **spec}), config=blob
        )
        self.poll(batch_window=window, assignments=(assignment,))

    def ask(self, *answers, interrupt=False, window=0.01, done=()):
        have = self.messages[-1].seq if self.messages else 0
        note = TrialUpdate(
            incarnation=self.key,
            durable_seq=have,
            received_seq=have,
            answers=answers,
            interrupt=interrupt,
        )
        self.poll(batch_window=window, updates=(note,), ended=done)

    def poll(self, **fields):
        self.calls += 1
        request = Request(number=self.calls, **fields)
        reply = open_reply(asyncio.run(self.actor.poll(dumps(request))))
        assert not reply.refused
        self.news = {news.incarnation: news for news in reply.reports}
        if self.key in self.news:
            self.messages += [decode(*entry) for entry in unpack(self.news[self.key].messages)]

    @property
    def occupied(self):
        """What the driver was told with the last call."""
        return self.news[self.key].occupied

    def trial(self):
        """Let the loop do the next thing that comes."""
        self.loop.callbacks.get(timeout=PATIENCE)()

    def until(self, kind):
        """Poll at each notifier until there is such a message, and return it."""
        while not (found := [message for message in self.messages if isinstance(message, kind)]):
            self.trial()
            self.ask()
        return found[-1]

    def run(self, config=(), **spec):
        self.assign(config, **spec)
        end = self.until(Ended | Failed | Stopped)
        self.actor.join(PATIENCE)
        return end


@pytest.fixture
def tell(request):
    told = shared[request.node.name] = SimpleNamespace(
        name=request.node.name, log=[], entered=threading.Event(), release=threading.Event()
    )
    yield told
    told.release.set()
    del shared[request.node.name]


class Model(Trainable):
    def setup(self, config):
        self.told = shared[config["test"]]
        self.told.log.append("setup")
        if config.get("breaks"):
            raise ValueError("no data")

    def step(self):
        return {"done": True}

    def reset_config(self, new_config):
        self.told.log.append("reset")
        return new_config.get("reusable", True)

    def cleanup(self):
        self.told.log.append("cleanup")


class Deaf(Model):
    """Its cleanup ends when the test wants, and not before."""

    def cleanup(self):
        super().cleanup()
        while not self.told.release.is_set():
            try:
                self.told.release.wait(0.01)
            except BaseException:
                self.told.log.append("interrupted")


# How a class trainable is used again.


def test_a_slot_keeps_the_object_for_its_next_trial(tell):
    worker = Worker(Model)
    for _ in range(3):
        assert isinstance(worker.run({"test": tell.name}), Ended)
    assert tell.log == ["setup", "reset", "reset"]
    assert not worker.actor.is_busy
    assert not worker.occupied


def test_a_worker_calls_its_actors_for_the_driver_as_long_as_dask_keeps_them():
    worker = Worker(lambda config: None)
    request = dumps(Request(number=1))
    call = functools.partial(worker.handlers[ACTOR_CALL], actor="actor-1", method="poll", blob=request)
    worker.state.actors["actor-1"] = worker.actor
    assert open_reply(asyncio.run(call())) == Reply(reports=())
    del worker.state.actors["actor-1"]
    assert asyncio.run(call()) is None
    # A second actor of the worker changes nothing.
    first = worker.handlers[ACTOR_CALL]
    TrialActor(
        "actor-2",
        plugin="plugin",
        topic="topic",
        worker=worker,
        driver_ttl=60.0,
        fence_after=60.0,
        stop_grace=0.05,
    )
    assert worker.handlers[ACTOR_CALL] is first


def test_without_reuse_nothing_is_kept(tell):
    worker = Worker(Model, reuse=False)
    worker.run({"test": tell.name})
    worker.run({"test": tell.name})
    assert tell.log == ["setup", "cleanup"] * 2


def test_a_setup_that_raises_costs_its_trial_and_not_the_slot(tell):
    worker = Worker(Model)
    assert isinstance(worker.run({"test": tell.name, "breaks": True}), Failed)
    assert isinstance(worker.run({"test": tell.name}), Ended)


def end_by_forgetting(worker):
    worker.state.actors.clear()
    worker.actor.check_driver()


@pytest.mark.parametrize(
    "end",
    [end_by_forgetting, lambda worker: worker.actor.retire(5.0), lambda w: w.actor.release_idle()],
)
def test_what_is_kept_is_cleaned_up_once_however_the_slot_ends(tell, end):
    worker = Worker(Model)
    worker.run({"test": tell.name})
    end(worker)
    worker.actor.join(PATIENCE)
    assert not worker.actor.is_busy
    end_by_forgetting(worker)
    worker.actor.join(PATIENCE)
    assert tell.log == ["setup", "cleanup"]
    assert not worker.plugin.actors


def held(config):
    assert shared[config["test"]].release.wait(PATIENCE)


def test_a_trial_that_ends_unheard_keeps_nothing_for_a_driver_that_hangs(tell):
    worker = Worker(held)
    worker.assign({"test": tell.name})
    # Only now, or the answer to the assignment might bring its end.
    tell.release.set()
    worker.actor.join(PATIENCE)
    leases = worker.plugin.leases
    leases |= {"actor-1-lease-1": threading.Event(), "actor-10-lease-1": threading.Event()}
    worker.actor.check_driver()
    assert asyncio.run(worker.actor.has_driver())
    worker.timer = lambda: time.monotonic() + 61.0
    worker.actor.check_driver()
    assert not asyncio.run(worker.actor.has_driver())
    assert [key for key, lease in leases.items() if lease.is_set()] == ["actor-1-lease-1"]
    worker.until(Ended)
    assert asyncio.run(worker.actor.has_driver())


def test_a_slot_is_busy_and_stays_known_while_a_cleanup_runs(tell):
    worker = Worker(Deaf, stop_grace=60.0)
    worker.run({"test": tell.name})
    [tenant] = worker.actor.release_idle()
    end_by_forgetting(worker)
    assert worker.actor.is_busy
    assert worker.actor.is_cleaning
    assert worker.actor.is_needed
    assert worker.plugin.actors
    tell.release.set()
    assert tenant.join(PATIENCE)
    worker.actor.check_driver()
    assert not worker.plugin.actors
    assert tell.log == ["setup", "cleanup"]


def test_a_cleanup_that_takes_too_long_is_interrupted_by_the_watch(tell):
    class Endless(Model):
        def cleanup(self):
            while True:
                pass

    worker = Worker(Endless, stop_grace=0.0)
    worker.run({"test": tell.name})
    [tenant] = worker.actor.release_idle()
    worker.actor.check_driver()
    assert tenant.join(PATIENCE)


def test_a_slot_whose_lease_was_given_back_keeps_again_with_its_next_trial(tell):
    worker = Worker(Model)
    worker.run({"test": tell.name})
    worker.actor.release_idle()
    worker.run({"test": tell.name})
    worker.run({"test": tell.name})
    worker.actor.release_idle()
    worker.actor.join(PATIENCE)
    assert sorted(tell.log) == sorted(["setup", "cleanup", "setup", "reset", "cleanup"])


def test_a_cleanup_that_never_ends_is_left_behind_and_occupies_the_slot(tell):
    worker = Worker(Deaf)
    worker.run({"test": tell.name})
    worker.assign({"test": tell.name, "reusable": False})
    worker.until(Ended)
    # The interrupt may reach its thread only after the next trial.
    while "interrupted" not in tell.log:
        time.sleep(0.001)
    # The reply says not to use it again, and the lease waits for what is left.
    assert worker.occupied
    [left, *_] = worker.actor.release_idle()
    assert not left.finished
    tell.release.set()
    worker.actor.join(PATIENCE)
    assert left.finished
    worker.ask()
    assert not worker.occupied
    worker.ask(done=(worker.key,))
    assert worker.key not in worker.news


def test_trials_that_wait_behind_such_a_cleanup_are_given_back(tell):
    worker = Worker(Deaf)
    worker.run({"test": tell.name})
    worker.assign({"test": tell.name, "reusable": False})
    worker.assign({"test": tell.name})
    worker.until(Returned)
    assert tell.log.count("setup") == 2


# What does not obey.


class Stuck(Model):
    """A step that obeys nothing before the test wants."""

    def step(self):
        self.told.entered.set()
        while not self.told.release.is_set():
            try:
                self.told.release.wait(0.01)
            except BaseException:
                self.told.log.append("interrupted")
        return {}


def test_a_step_that_obeys_nothing_holds_its_slot_until_it_ends_at_last(tell):
    worker = Worker(Stuck)
    worker.assign({"test": tell.name})
    assert tell.entered.wait(PATIENCE)
    worker.ask(StopAnswer(reason="slow"))
    while "interrupted" not in tell.log:
        worker.ask(interrupt=True)
    tenants = worker.actor.release_idle()
    assert worker.actor.is_busy
    assert not any(tenant.finished for tenant in tenants)
    tell.release.set()
    assert isinstance(worker.until(Stopped), Stopped)
    assert all(tenant.finished for tenant in tenants)
    assert tell.log[-1] == "cleanup"


# When the actor rings.


def stream(config):
    told = shared[config["test"]]
    told.entered.wait(PATIENCE)
    report({})
    told.release.wait(PATIENCE)


def test_streamed_results_ring_after_the_window_that_the_driver_has_set(tell):
    worker = Worker(stream)
    worker.assign({"test": tell.name}, window=0.5)
    worker.until(Started)
    worker.ask(window=0.7)
    rung = worker.rung
    tell.entered.set()
    while not worker.loop.timers:
        worker.trial()
    assert worker.rung == rung
    [(delay, ring)] = worker.loop.timers.values()
    assert delay == 0.7
    ring()
    assert worker.rung == rung + 1
    worker.ask()
    assert isinstance(worker.messages[-1], Reported)


def test_news_that_the_driver_has_fetched_by_itself_do_not_ring(tell):
    worker = Worker(stream)
    worker.assign({"test": tell.name})
    notifier = worker.loop.callbacks.get(timeout=PATIENCE)
    worker.ask()
    assert isinstance(worker.messages[0], Started)
    notifier()
    assert worker.rung == 0


def test_a_milestone_and_the_end_ring_at_once():
    worker = Worker(lambda config: report({}))
    worker.assign(window=60.0, milestones=EVERY_RESULT)
    waiting = worker.until(Reported)
    worker.ask(ContinueAnswer(seq=waiting.seq, milestones=()))
    worker.until(Ended)
    # `until` does nothing but what bells and not timers tell it.
    assert not worker.loop.timers


# What the driver is to carry.


def save(config):
    report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))


def first_transfer(worker):
    """Wait for the notifier for something to be carried, and return its number."""
    while not (worker.key in worker.news and worker.news[worker.key].transfers):
        worker.trial()
        worker.ask()
    return worker.news[worker.key].transfers[0]


def carry(worker, number, step, key=None):
    carriage = TransferCall(incarnation=key or worker.key, number=number, step=step)
    return open_reply(asyncio.run(worker.actor.transfer_step(dumps(carriage))))


def test_the_driver_gets_what_is_to_be_carried_until_it_has_ended():
    worker = Worker(save)
    worker.assign(relayed=True)
    number = first_transfer(worker)
    worker.ask()
    # It is said again: an answer may get lost on its way.
    assert worker.news[worker.key].transfers == (number,)
    upload = carry(worker, number, GetTransfer())
    [file] = upload.files
    assert len(carry(worker, number, ReadPiece(file=0, offset=0, size=file.size))) == file.size
    with pytest.raises(Refused, match="the trial no longer runs"):
        carry(worker, number, GetTransfer(), key="another-1")
    carry(worker, number, EndTransfer())
    worker.until(Ended)
    assert [one.checkpoint for one in worker.messages if isinstance(one, Reported)] == [upload.record]
    assert worker.news[worker.key].transfers == ()


def test_a_trial_whose_checkpoint_is_carried_ends_with_its_driver():
    worker = Worker(save)
    worker.assign(relayed=True)
    first_transfer(worker)
    worker.state.actors.clear()
    worker.actor.check_driver()
    assert isinstance(worker.until(Stopped), Stopped)
    worker.actor.join(PATIENCE)
    assert not [one for one in worker.messages if isinstance(one, Reported)]


# Threads.


def test_no_thread_is_left_when_trials_have_ended(tell):
    before = set(threading.enumerate())
    worker = Worker(Model)
    for _ in range(3):
        worker.run({"test": tell.name})
    assert set(threading.enumerate()) <= before
