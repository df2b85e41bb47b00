"""The Dask actor on a worker: a slot that runs one trial after the other.

Its methods are coroutines, short, and idempotent, because Dask may issue a call again after a broken
connection. User code never runs on the worker's event loop nor on Dask's single actor thread: a
`TrialRun` gives it a thread of its own.
"""

from __future__ import annotations

import functools
import logging
import pickle
import threading
import time
import weakref
from typing import Any

from distributed.worker import get_worker
from tornado.ioloop import PeriodicCallback

from dasktune.cluster.envelope import Assignment, Reply, Request, enveloped
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.messages import StopNow
from dasktune.trainable.run import TrialRun

__all__ = ["TrialSlot"]

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether the driver is still there.
_WATCH_INTERVAL = 1.0


class TrialSlot:
    """Runs the trials that the driver assigns, one at a time.

    Parameters
    ----------
    key : str
        The slot's key in Dask: when Dask forgets it, the driver is gone.
    number : int
        What the slot calls itself when it rings.
    plugin : str
        Name of the experiment's worker plugin, which holds the trainable.
    topic : str
        Where to ring.
    driver_ttl : float
        A driver that is silent for so many seconds is gone: the trial is stopped.
    fence_after : float
        No checkpoint is committed when the driver has been silent for so many seconds.
    stop_grace : float
        Seconds from asking user code to stop to interrupting it.
    """

    def __init__(
        self,
        key: str,
        number: int,
        *,
        plugin: str,
        topic: str,
        driver_ttl: float,
        fence_after: float,
        stop_grace: float,
    ) -> None:
        self._worker = get_worker()
        self._key = key
        self._number = number
        self._plugin = self._worker.plugins[plugin]
        self._topic = topic
        self._driver_ttl = driver_ttl
        self._fence_after = fence_after
        self._stop_grace = stop_grace
        self._run: TrialRun | None = None
        self._incarnation = ""
        self._orphaned_at: float | None = None
        self._heard = time.monotonic()
        self._contact = threading.Condition()
        self._trainable: Any = None
        self._plugin.slots.add(self)
        self._worker.loop.add_callback(_watch, weakref.ref(self))

    # What the driver calls

    @enveloped
    async def assign(self, assignment: Assignment) -> Reply:
        """Start a trial; assigning it twice starts it once."""
        self._hear()
        if assignment.incarnation != self._incarnation:
            if self.is_busy:
                raise RuntimeError(f"the slot still runs {self._incarnation}")
            self._incarnation = assignment.incarnation
            self._orphaned_at = None
            opener = functools.partial(self._open, assignment.config)
            self._run = TrialRun(assignment.spec, opener, self._ring, self._fence)
            self._run.start()
        return self._collect(Request(incarnation=assignment.incarnation))

    @enveloped
    async def poll(self, request: Request) -> Reply:
        """Return what the driver does not have yet."""
        self._hear()
        return self._collect(request)

    @enveloped
    async def decide(self, request: Request) -> Reply:
        """Take the driver's answers."""
        self._hear()
        run = self._running(request)
        for answer in request.answers:
            run.answer(answer)
        return self._collect(request)

    @enveloped
    async def revoke(self, request: Request) -> Reply:
        """Interrupt user code that did not obey a stop."""
        self._hear()
        self._running(request).interrupt()
        return self._collect(request)

    # What happens on the worker

    @property
    def is_busy(self) -> bool:
        """Whether user code is still running, wanted or not."""
        return self._run is not None and not self._run.finished

    def retire(self) -> None:
        """Make the trial leave, because the worker does."""
        if self._run is not None:
            self._run.answer(StopNow(reason="its worker is retiring"))

    def watch_driver(self) -> bool:
        """Stop a trial whose driver is gone or silent, and say whether to go on watching."""
        forgotten = self._key not in self._worker.state.actors
        silence = time.monotonic() - self._heard
        if self.is_busy and (forgotten or silence > self._driver_ttl):
            self._orphan("Dask has forgotten it" if forgotten else f"silent for {silence:.0f} s")
        if forgotten and not self.is_busy:
            self._plugin.slots.discard(self)
            return False
        return True

    def _orphan(self, why: str) -> None:
        assert self._run is not None
        now = time.monotonic()
        if self._orphaned_at is None:
            self._orphaned_at = now
            logger.warning("The driver of %s is gone (%s); stopping it.", self._incarnation, why)
            self._run.answer(StopNow(reason="its driver is gone"))
        elif now - self._orphaned_at > self._stop_grace:
            self._run.interrupt()

    def _open(self, config: bytes) -> tuple[Any, Any]:
        """Unpickle what the user wrote, in the trial's thread: it may run code and take its time."""
        if self._trainable is None:
            self._trainable = pickle.loads(self._plugin.payload)["trainable"]
        return self._trainable, pickle.loads(config)["config"]

    def _ring(self) -> None:
        self._worker.loop.add_callback(self._worker.log_event, self._topic, self._number)

    def _hear(self) -> None:
        with self._contact:
            self._heard = time.monotonic()
            self._contact.notify_all()

    def _fence(self) -> None:
        """Let a checkpoint be committed only under the eyes of the driver.

        A worker that held the interpreter for long has heard nothing through no fault of the
        driver's, so a fresh contact is waited for before the trial is given up.
        """
        with self._contact:
            if self._contact.wait_for(self._is_in_contact, timeout=self._fence_after):
                return
        raise TrialInterrupted(f"the driver has been silent for {self._fence_after:.0f} s")

    def _is_in_contact(self) -> bool:
        return time.monotonic() - self._heard < self._fence_after

    def _running(self, request: Request) -> TrialRun:
        if self._run is None or request.incarnation != self._incarnation:
            raise RuntimeError(f"the slot runs {self._incarnation!r}, not {request.incarnation!r}")
        return self._run

    def _collect(self, request: Request) -> Reply:
        messages = self._running(request).collect(request.ack, request.have)
        return Reply(messages=tuple(messages))


def _watch(reference: weakref.ref[TrialSlot]) -> None:
    """Look after a slot for as long as it exists; runs on the worker's event loop."""

    def look() -> None:
        slot = reference()
        if slot is None or not slot.watch_driver():
            periodic.stop()

    periodic = PeriodicCallback(look, _WATCH_INTERVAL * 1000)
    periodic.start()
