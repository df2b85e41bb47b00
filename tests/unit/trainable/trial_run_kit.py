"""A driver's end of a TrialRun, for tests."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from dasktune.storage.fs.storage import Storage
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.outbox import Outbox
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import (
    Ended,
    Failed,
    Message,
    PauseAnswer,
    Paused,
    Reported,
    Stopped,
    Unrestored,
)
from dasktune.trainable.running.thread_run import ThreadRun, TrialSpec
from dasktune.trial.milestone import Milestone
from dasktune.trial.resources import PlacementGroupFactory

_numbers = itertools.count()

#: No deadline of the tests themselves; a run that hangs fails here.
PATIENCE = 30.0

TERMINAL = (Ended, Paused, Stopped, Failed, Unrestored)


def make_spec(**changes: Any) -> TrialSpec:
    values: dict[str, Any] = {
        "trial_id": "t1",
        "incarnation": 1,
        "resources": PlacementGroupFactory([{"CPU": 1}]),
        "storage": Storage(f"memory://trainable-{next(_numbers)}"),
        "trial_dir": "t1_dir",
        "experiment_name": "exp",
        "trial_name": "train_t1",
        "milestones": (),
        "checkpoint_at_end": False,
    }
    return TrialSpec(**values | changes)


class Driver:
    """Starts a run and collects its messages as they ring."""

    def __init__(
        self,
        trainable: Any,
        *,
        config: dict[str, Any] | None = None,
        fence: Any = None,
        keep: Any = None,
        packed: bytes = b"",
        max_messages: int | None = None,
        **options: Any,
    ) -> None:
        self.bell = threading.Semaphore(0)
        self.messages: list[Message] = []
        extra = {name: options.pop(name) for name in ("timer", "reusable", "transfers") if name in options}
        opener = lambda: (trainable, config or {})  # noqa: E731 - a def would say no more
        ring = lambda urgency: self.bell.release()  # noqa: E731
        given = {"fence": fence, "keep_in_memory": keep, "packed": packed}
        port = CheckpointHooks(**{name: value for name, value in given.items() if value is not None})
        if max_messages is not None:
            extra["outbox"] = Outbox(ring, max_messages=max_messages)
        self.run = ThreadRun(make_spec(**options), opener, ring, port, **extra)
        self.run.start()

    def collect(self) -> None:
        have = self.messages[-1].seq if self.messages else 0
        self.messages += [decode(*entry) for entry in self.run.collect(have, have)]

    def until(self, happened: Any) -> Message:
        """Collect until a message fulfils `happened`, and return it."""
        looked = 0
        while True:
            self.collect()
            for message in self.messages[looked:]:
                if happened(message):
                    return message
            looked = len(self.messages)
            assert self.bell.acquire(timeout=PATIENCE), self.messages

    def awaiting(self) -> Reported:
        """Collect until the run waits at a new result, and return that."""
        last = self.messages[-1].seq if self.messages else 0
        found = self.until(lambda m: isinstance(m, Reported) and m.awaits and m.seq > last)
        assert isinstance(found, Reported)
        return found

    def end(self) -> Message:
        """Collect to the end, check that there is only one, and return the terminal message."""
        last = self.until(lambda message: isinstance(message, TERMINAL))
        assert self.run.finished
        assert self.run.join(PATIENCE)
        self.collect()
        assert [m.seq for m in self.messages] == list(range(1, len(self.messages) + 1))
        assert sum(isinstance(m, TERMINAL) for m in self.messages) == 1
        assert self.messages[-1] is last
        return last

    @property
    def results(self) -> list[Reported]:
        return [m for m in self.messages if isinstance(m, Reported)]

    def values(self, name: str) -> list[Any]:
        return [m.metrics.get(name) for m in self.results]


def paused_and_whole(train: Any, folder: Any) -> tuple[Driver, Driver, Driver]:
    """Train in one piece, and with a pause after two results; return whole, begun and rest."""
    whole = Driver(train)
    assert isinstance(whole.end(), Ended)
    storage = Storage(str(folder))
    begun = Driver(train, storage=storage, milestones=(Milestone("training_iteration", 2.0),))
    begun.awaiting()
    begun.run.answer(PauseAnswer())
    assert isinstance(begun.end(), Paused)
    record = begun.results[-1].checkpoint
    rest = Driver(train, storage=storage, incarnation=2, checkpoint=record, next_checkpoint=2)
    assert isinstance(rest.end(), Ended)
    return whole, begun, rest
