"""A slot's end of trials in real child processes, without Dask."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dasktune.isolation.process_run import ProcessRun, WarmProcess
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.data.shared_objects import dumps_without
from dasktune.trainable.reporting.encoding import decode
from dasktune.trainable.reporting.recorder import CheckpointHooks
from dasktune.trainable.reporting.trial_messages import (
    ContinueAnswer,
    Ended,
    Failed,
    Message,
    Paused,
    Reported,
    Stopped,
)
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory

#: A guard against hanging, not an expectation.
PATIENCE = 60.0

TERMINAL = (Ended, Paused, Stopped, Failed)

_numbers = itertools.count()


def make_spec(place: Path, **changes: Any) -> TrialSpec:
    values: dict[str, Any] = {
        "trial_id": f"t{next(_numbers)}",
        "incarnation": 1,
        "resources": PlacementGroupFactory([{"CPU": 1}]),
        "storage": Storage(str(place)),
        "experiment_name": "exp",
        "trial_name": "train",
        "milestones": (),
        "checkpoint_at_end": False,
        "isolation": "process",
    }
    values |= changes
    return TrialSpec(**{"trial_dir": values["trial_id"], **values})


class Slot:
    """Runs trials one after the other, as a slot on a worker does, and collects as they ring.

    All of them have the same trainable, which by default does what its configuration says.
    """

    def __init__(self, place: Path, trainable: Any = None) -> None:
        self.place = place
        self.warm = WarmProcess()
        self._payload = dumps_without({"trainable": trainable or (lambda c: c["do"](c))}, {})

    def start(
        self,
        do: Any = None,
        config: dict[str, Any] | None = None,
        *,
        fence: Callable[[], None] = lambda: None,
        keep: Callable[[str, bytes], None] = lambda path, packed: None,
        packed: bytes = b"",
        chance: float = 1.0,
        payload: dict[str, Any] | None = None,
        reuse: bool = False,
        **spec: Any,
    ) -> Trial:
        blob = dumps_without({"config": {"do": do, **(config or {})}}, {})
        bell = threading.Semaphore(0)
        run = ProcessRun(
            make_spec(self.place, **spec),
            lambda: ChildPayload(**{"code": self._payload, "config": blob, **(payload or {})}),
            self.warm,
            lambda urgency: bell.release(),
            CheckpointHooks(fence=fence, keep_in_memory=keep, packed=packed),
            kill_delay=chance,
            reuse=reuse,
        )
        run.start()
        return Trial(run, bell)

    def run(self, do: Any = None, config: Any = None, **options: Any) -> Trial:
        trial = self.start(do, config, **options)
        trial.end()
        return trial


class Trial:
    """One trial of a slot."""

    def __init__(self, run: ProcessRun, bell: threading.Semaphore) -> None:
        self.run = run
        self.bell = bell
        self.messages: list[Message] = []

    def collect(self) -> None:
        have = self.messages[-1].seq if self.messages else 0
        self.messages += [decode(*entry) for entry in self.run.collect(have, have)]

    def until(self, happened: Callable[[Message], bool]) -> Message:
        looked = 0
        while True:
            self.collect()
            for message in self.messages[looked:]:
                if happened(message):
                    return message
            looked = len(self.messages)
            assert self.bell.acquire(timeout=PATIENCE), self.messages

    def result(self, name: str) -> Any:
        """Wait for a result that has a metric, and return that."""
        found = self.until(lambda m: isinstance(m, Reported) and name in m.metrics)
        assert isinstance(found, Reported)
        return found.metrics[name]

    def result_number(self, number: int) -> Reported:
        """Wait for the result with this number, from 1, and return it."""
        self.until(lambda message: len(self.results) >= number)
        return self.results[number - 1]

    def answer(self, number: int) -> None:
        """Answer the result with this number."""
        self.run.answer(ContinueAnswer(seq=self.results[number - 1].seq))

    def end(self) -> Message:
        last = self.until(lambda message: isinstance(message, TERMINAL))
        assert self.run.finished
        assert self.run.join(PATIENCE)
        self.collect()
        assert [m.seq for m in self.messages] == list(range(1, len(self.messages) + 1))
        assert self.messages[-1] is last
        return last

    @property
    def results(self) -> list[Reported]:
        return [m for m in self.messages if isinstance(m, Reported)]

    def values(self, name: str) -> list[Any]:
        return [m.metrics.get(name) for m in self.results]
