"""The Dask actor on a worker: a slot that runs one trial after the other.

Its methods are coroutines, short, and idempotent, because Dask may issue a call again after a
broken connection. User code never runs on the worker's event loop nor on Dask's single actor
thread: a `TrialRun` gives it a thread of its own.
"""

from __future__ import annotations

import functools
import logging
import pickle
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from distributed.worker import get_worker
from tornado.ioloop import PeriodicCallback

from dasktune.cluster.contact import Contact
from dasktune.cluster.envelope import Assignment, Reply, Request, enveloped
from dasktune.cluster.nested import ClusterAccess, SharedClient
from dasktune.trainable.interrupt import TrialInterrupted
from dasktune.trainable.messages import PauseNow, StopNow
from dasktune.trainable.nested import offer_client
from dasktune.trainable.run import TrialRun
from dasktune.trainable.shared_objects import loads_with

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
        self.key = key
        self._number = number
        self._plugin = self._worker.plugins[plugin]
        self._topic = topic
        self._driver_ttl = driver_ttl
        self._stop_grace = stop_grace
        self._run: TrialRun | None = None
        self._incarnation = ""
        #: What has run here: a call that was under way for long must not start it once more.
        self._past: set[str] = set()
        #: Whether the driver was sent the last word of the run.
        self._delivered = False
        self._orphaned_at: float | None = None
        self._contact = Contact(fence_after)
        self._trainable: Any = None
        self._plugin.slots.add(self)
        access = ClusterAccess.of_worker(self._worker)
        self._plugin.shared.setdefault("client", SharedClient(access))
        self._worker.loop.add_callback(_watch, weakref.ref(self))

    # What the driver calls

    @enveloped
    async def assign(self, assignment: Assignment) -> Reply:
        """Start a trial; assigning it twice starts it once."""
        if assignment.incarnation != self._incarnation:
            if self.is_busy:
                raise RuntimeError(f"the slot still runs {self._incarnation}")
            if assignment.incarnation in self._past:
                raise RuntimeError(f"{assignment.incarnation} has run here already")
            self._incarnation = assignment.incarnation
            self._past.add(assignment.incarnation)
            self._orphaned_at, self._delivered = None, False
            self._contact.renew()
            opener = functools.partial(self._open, assignment.config)
            self._run = TrialRun(assignment.spec, opener, self._ring, self._fence)
            self._run.start()
        return self._collect(Request(incarnation=assignment.incarnation))

    @enveloped
    async def poll(self, request: Request) -> Reply:
        """Return what the driver does not have yet."""
        self._contact.hear(request.number)
        return self._collect(request)

    @enveloped
    async def decide(self, request: Request) -> Reply:
        """Take the driver's answers."""
        self._contact.hear(request.number)
        self._obey(request)
        return self._collect(request)

    @enveloped
    async def revoke(self, request: Request) -> Reply:
        """Interrupt user code that did not obey a stop."""
        self._contact.hear(request.number)
        # First the answers: with no grace at all the order to leave has not been heard of before.
        self._obey(request).interrupt()
        return self._collect(request)

    # What happens on the worker

    @property
    def is_busy(self) -> bool:
        """Whether user code is still running, wanted or not."""
        return self._run is not None and not self._run.finished

    @property
    def is_forgotten(self) -> bool:
        """Whether Dask has dropped the slot: its driver is gone, or done with it."""
        return self.key not in self._worker.state.actors

    @property
    def is_needed(self) -> bool:
        """Whether a trial runs here, or its last word has not been fetched by its driver."""
        owes = self._run is not None and not self._delivered
        return self.is_busy or (owes and not self.is_forgotten)

    def retire(self) -> None:
        """Make the trial save and leave, because the worker does."""
        if self._run is not None:
            self._run.answer(PauseNow(save=True, reason="its worker is retiring"))

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the end of the trial's thread."""
        if self._run is not None:
            self._run.join(timeout)

    def watch_driver(self) -> bool:
        """Stop a trial whose driver is gone or silent, and say whether to go on watching."""
        forgotten = self.is_forgotten
        silence = self._contact.silence
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
        """Unpickle what the user wrote, in the trial's thread: it may run code for a while."""
        deadline = time.monotonic() + 2 * self._stop_grace
        for orphan in self._orphans():
            # What it was started for is to run again, perhaps here, and it still uses this worker.
            orphan.join(max(0.0, deadline - time.monotonic()))
        if self._trainable is None:
            self._trainable = loads_with(self._plugin.payload, self._shared)["trainable"]
        offer_client(self._plugin.shared["client"].get)
        return self._trainable, pickle.loads(config)["config"]

    def _shared(self, name: str) -> Any:
        """Return a large object, which is on this worker before a trial is assigned."""
        return self._plugin.shared[name].get()

    def _orphans(self) -> Iterator[TrialSlot]:
        """Yield the slots of lost drivers on this worker, our own before a reconnect among them."""
        for name, plugin in tuple(self._worker.plugins.items()):
            if name.startswith("dasktune-"):
                yield from (s for s in tuple(plugin.slots) if s.is_forgotten and s is not self)

    def _ring(self) -> None:
        self._worker.loop.add_callback(self._send_bell)

    def _send_bell(self) -> None:
        # A worker on its way out may have no connection left; the driver polls besides.
        with suppress(OSError):
            self._worker.log_event(self._topic, self._number)

    def _fence(self) -> None:
        """Let a checkpoint be committed only under the eyes of the driver."""
        if self._contact.wait() and not self.is_forgotten:
            return
        reason = f"the driver has been silent for {self._contact.silence:.0f} s"
        if self._run is not None:
            # An order to leave, or it would look like a failure of user code.
            self._run.answer(StopNow(reason=reason))
        raise TrialInterrupted(reason)

    def _running(self, request: Request) -> TrialRun:
        if self._run is None or request.incarnation != self._incarnation:
            raise RuntimeError(f"the slot runs {self._incarnation!r}, not {request.incarnation!r}")
        return self._run

    def _obey(self, request: Request) -> TrialRun:
        run = self._running(request)
        for answer in request.answers:
            run.answer(answer)
        return run

    def _collect(self, request: Request) -> Reply:
        run = self._running(request)
        finished = run.finished
        messages = run.collect(request.ack, request.have)
        self._delivered = finished
        return Reply(messages=tuple(messages))


def _watch(reference: weakref.ref[TrialSlot]) -> None:
    """Look after a slot for as long as it exists; runs on the worker's event loop."""

    def look() -> None:
        slot = reference()
        if slot is None or not slot.watch_driver():
            periodic.stop()

    periodic = PeriodicCallback(look, _WATCH_INTERVAL * 1000)
    periodic.start()
