"""The plugin that an experiment puts on every worker, late ones included.

It travels by value, so it may use nothing but the standard library and distributed: a worker that
cannot unpickle a plugin would be listed but dead, for everybody.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from distributed import WorkerPlugin

__all__ = ["ExperimentPlugin"]


class ExperimentPlugin(WorkerPlugin):  # type: ignore[misc]
    """Carries the user's code to the workers, ends leases, and lets trials save at retirement.

    Parameters
    ----------
    name : str
        Unique to the experiment.
    payload : bytes
        The pickled trainable. It is opened in a trial's own thread, never here.
    grace : float, default=5.0
        Longest wait for running trials when the worker retires, in seconds; a nanny kills after 8.
    """

    idempotent = True

    def __init__(self, name: str, payload: bytes, grace: float = 5.0) -> None:
        self.name = name
        self.payload = payload
        self.grace = grace
        #: The slots of this worker that may be running a trial, by their keys.
        self.slots: dict[str, Any] = {}
        #: The worker's end of the line to the driver, by the topic on which it rings.
        self.stations: dict[str, Any] = {}
        #: What wakes a lease on this worker, by the key of its task.
        self.leases: dict[str, asyncio.Event] = {}
        #: Checkpoints that trials have left on this worker, by the key of the task that takes each.
        self.kept: dict[str, bytes] = {}
        #: What the trials of this worker share, by name; each is closed with the experiment.
        self.shared: dict[str, Any] = {}

    def transition(self, key: Any, start: str, finish: str, **facts: Any) -> None:
        """Wake a lease whose key is released; Dask itself does not end a coroutine.

        And let go of a checkpoint that is Dask's now, or not wanted any more.
        """
        if finish in ("cancelled", "released", "forgotten") and key in self.leases:
            self.leases[key].set()
        if finish in ("memory", "error", "cancelled", "released", "forgotten"):
            self.kept.pop(key, None)

    async def teardown(self, worker: Any) -> None:
        """Ask every running trial to leave, and wait a little for them to save and tell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.grace
        for slot in tuple(self.slots.values()):
            slot.retire()
        for released in self.leases.values():
            # It holds on until its trial has left.
            released.set()
        are_awaited = any(slot.is_needed and not slot.is_forgotten for slot in self.slots.values())
        # When only the experiment has ended, Dask has forgotten its slots, and what was kept is let
        # go; but the process may end together with the driver. The status of the worker does not
        # tell: one that is closing is "running" again as soon as it hears that it cannot retire.
        while loop.time() < deadline and any(
            slot.is_cleaning if slot.is_forgotten else slot.is_needed
            for slot in tuple(self.slots.values())
        ):
            await asyncio.sleep(0.02)
        if are_awaited:
            # What they said last is on its way, and would be lost with the connections.
            await asyncio.sleep(0.2)
        for slot in tuple(self.slots.values()):
            if not slot.is_needed:
                slot.leave()
        if self.shared:
            # Beside the event loop: a client may have to talk to a scheduler that lives on it.
            await loop.run_in_executor(None, self._let_go)

    def _let_go(self) -> None:
        """Close what is shared, and free its memory: the next experiment may bring as much."""
        while self.shared:
            self.shared.popitem()[1].close()
        # Classes, to which large objects are bound, refer to themselves.
        gc.collect()
