"""The plugin that an experiment registers on every worker, including workers that join late.

It is pickled by value, so it uses only the standard library, distributed, and psutil, which
distributed needs. The scheduler would list a worker that cannot unpickle a plugin, but no client
could use that worker.

All methods but `_close_shared` run on the worker's event loop. Threads that create actors and run
trials also change the dicts, each time in one atomic operation. So the loop copies such a dict
before it iterates over it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import weakref
from typing import Any

import psutil
from distributed import WorkerPlugin
from distributed.core import Status


def process_group() -> tuple[str, int] | None:
    """Return the host and the process group of this process; None where there are no groups.

    A terminal sends Ctrl-C to all processes of a group.
    """
    return (socket.gethostname(), os.getpgrp()) if hasattr(os, "getpgrp") else None


def _is_gone(driver: Any) -> bool:
    """Whether a driver's process has ended; its parent may not have collected it yet."""
    try:
        return not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class ExperimentPlugin(WorkerPlugin):  # type: ignore[misc]
    """Holds the experiment's objects on a worker, ends its leases, and pauses trials at retirement.

    Parameters
    ----------
    name : str
        Unique to the experiment.
    payload : bytes
        The pickled trainable. A trial's own thread unpickles it, never the event loop.
    grace : float, default=5.0
        Seconds to wait for running trials when the worker retires. Its nanny kills it after 8 s.
    terminal : tuple of str and int, optional
        The host and the process group of the driver. A terminal sends Ctrl-C to all processes of
        the group, and a worker among them ignores it as long as it has the plugin and the driver
        lives: the driver handles it, and needs the worker to save the trials.
    driver : int, optional
        The driver's process id. A worker that runs in the driver's own process, on an event loop in
        its main thread, must not take the signal from the driver. A driver that was killed cannot
        remove its plugin, so a worker that gets the signal looks whether this process exists.
    """

    idempotent = True

    def __init__(
        self,
        name: str,
        payload: bytes,
        grace: float = 5.0,
        terminal: tuple[str, int] | None = None,
        driver: int | None = None,
    ) -> None:
        self.name = name
        self.payload = payload
        self.grace = grace
        self.terminal, self.driver = terminal, driver
        #: The actors on this worker, by key.
        self.actors: dict[str, Any] = {}
        #: The endpoints of the links to the driver, by topic.
        self.endpoints: dict[str, Any] = {}
        #: The event that ends each lease on this worker, by the key of its task.
        self.leases: dict[str, asyncio.Event] = {}
        #: Checkpoints that trials have left here, by the key of the task that hands each to Dask.
        self.checkpoints: dict[str, bytes] = {}
        #: Objects that the trials of this worker share, by name; closed with the experiment.
        self.shared: dict[str, Any] = {}
        #: The agents whose ranks of distributed trials run here, with the key of the trial's actor.
        self.rank_agents: list[tuple[str, Any]] = []

    @property
    def ranks_op(self) -> str:
        """The name under which a worker accepts connections to its agent for ranks."""
        return f"{self.name}-ranks"

    def setup(self, worker: Any) -> None:
        """Ignore the driver's Ctrl-C, and accept connections of distributed trials."""
        shares_terminal = self.terminal is not None and self.terminal == process_group()
        if shares_terminal and self.driver != os.getpid():
            self._ignore_interrupts()
        # Dask keeps each handler that was called for as long as the process lives. So the handler
        # holds neither this plugin, with the trainable, nor the worker.
        name, host = self.name, weakref.ref(worker)

        async def serve(comm: Any, **message: Any) -> Any:
            serving = host()
            plugin = None if serving is None else serving.plugins.get(name)
            if plugin is None:  # the experiment has just ended on this worker
                comm.abort()
                return Status.dont_reply
            # Imported at the first use: this module must be pickled without dasktune.
            from dasktune.cluster.worker.agent_link import serve_agent

            wanted = {name: message[name] for name in ("actor", "topic", "lost_after_s")}
            return await serve_agent(serving, plugin, comm, **wanted)

        worker.handlers[self.ranks_op] = serve

    def _ignore_interrupts(self) -> None:
        """Let a handler ignore SIGINT until no experiment on this worker has a driver.

        Programs that user code starts would inherit it if the signal itself were ignored. Only the
        main thread may set handlers; in other processes than a worker's own, its loop is elsewhere.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        found: Any = signal.getsignal(signal.SIGINT)
        if found is None or found == signal.SIG_IGN:
            # The workers of dasktune's own clusters ignore it, and the programs that user code
            # starts there inherit that: one that died of Ctrl-C would fail its trial.
            return
        try:
            driver = None if self.driver is None else psutil.Process(self.driver)
        except psutil.NoSuchProcess:  # the worker has joined after the driver's end
            return
        # Each plugin is pickled by value with functions of its own, so it is known by an attribute.
        if getattr(found, "experiments", None) is None:

            def ignore(number: int, frame: Any) -> None:
                # Python runs this in the main thread, which is also where plugins come and go.
                waiting = handler.experiments
                for name in [one for one, driver in waiting.items() if driver and _is_gone(driver)]:
                    del waiting[name]
                if not waiting:
                    signal.signal(number, handler.previous)
                    signal.raise_signal(number)

            handler: Any = ignore
            #: By the name of each experiment: its driver's process, if it is known.
            handler.experiments, handler.previous = {}, found
            signal.signal(signal.SIGINT, handler)
            found = handler
        found.experiments[self.name] = driver

    def _obey_interrupts(self) -> None:
        """Restore the handler of SIGINT if no other experiment needs this worker to ignore it."""
        found: Any = signal.getsignal(signal.SIGINT)
        experiments = getattr(found, "experiments", None)
        if experiments is None or threading.current_thread() is not threading.main_thread():
            return
        experiments.pop(self.name, None)
        if not experiments:
            signal.signal(signal.SIGINT, found.previous)

    def report_notices(self, worker: Any, topic: str) -> Any:
        """Report each notice of the worker to the driver while the returned object exists.

        The driver must get it also if the worker runs no actor of the experiment but holds
        resources of a trial elsewhere.
        """
        from dasktune.cluster.worker.worker_notices import NoticeReporter

        return NoticeReporter.started(worker, topic)

    def transition(self, key: Any, start: str, finish: str, **facts: Any) -> None:
        """End a lease whose key is released, as Dask does not cancel a running coroutine.

        Also drop a checkpoint that Dask holds now, or whose key was released.
        """
        if finish in ("cancelled", "released", "forgotten") and key in self.leases:
            self.leases[key].set()
        if finish in ("memory", "error", "cancelled", "released", "forgotten"):
            self.checkpoints.pop(key, None)

    async def teardown(self, worker: Any) -> None:
        """Pause every running trial, and wait a little for its checkpoint and last message."""
        worker.handlers.pop(self.ranks_op, None)
        self._obey_interrupts()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.grace
        for actor in tuple(self.actors.values()):
            actor.retire(self.grace)
        for released in self.leases.values():
            # Safe while user code runs: a lease that ends holds its resources until user code ends.
            released.set()
        are_awaited = any(actor.is_needed and not actor.is_forgotten for actor in tuple(self.actors.values()))
        # If the experiment has ended and the worker does not retire, Dask has released the actors
        # and no message is awaited. Wait only for cleanups then, because the process may end with
        # the driver. The worker's status does not distinguish the two cases: it is "running" again
        # if the worker could not retire.
        while loop.time() < deadline and any(
            actor.is_cleaning if actor.is_forgotten else actor.is_needed
            for actor in tuple(self.actors.values())
        ):
            await asyncio.sleep(0.005)
        # The order to remove this plugin may overtake the release of the last actors by some
        # milliseconds. Then no message was awaited, although it seemed so above.
        if are_awaited and not all(actor.is_forgotten for actor in tuple(self.actors.values())):
            # The trials' last messages are on the way, and would be lost with the connections.
            await asyncio.sleep(0.2)
        for _, agent in tuple(self.rank_agents):
            # The end of a connection closes an agent, too, but the trial's own worker has none.
            agent.leave(worker.address)
        for actor in tuple(self.actors.values()):
            if not actor.is_needed:
                actor.discard()
        if self.shared:
            # In a thread: closing a client may need a scheduler that runs on this loop.
            await loop.run_in_executor(None, self._close_shared)

    def _close_shared(self) -> None:
        """Close the shared objects and free their memory for the next experiment."""
        while self.shared:
            self.shared.popitem()[1].close()
        # Classes with bound large objects are in reference cycles, which only the collector frees.
        gc.collect()
