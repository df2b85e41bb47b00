"""The driver's end of a slot: calls with a deadline, and one exception for all that goes wrong.

Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Actor, Client

from dasktune.cluster.envelope import Carriage, Reply, Request, open_reply, seal
from dasktune.cluster.lease import Lease
from dasktune.cluster.opaque import opaque
from dasktune.cluster.slot import TrialSlot

__all__ = ["CALL_DEADLINE", "SlotFailed", "SlotHandle"]

#: Seconds that the slot's constructor may take; user code does not run in it.
_OPEN_DEADLINE = 15.0

#: Seconds that a call may take. No method of a slot waits for user code.
CALL_DEADLINE = 5.0

#: Seconds that a piece of a checkpoint may take on its way.
_CARRY_DEADLINE = 60.0

#: Seconds to tell the scheduler that a slot is not needed any more.
_CLOSE_DEADLINE = 5.0

logger = logging.getLogger(__name__)


class SlotFailed(Exception):
    """A slot could not be opened, or did not answer. It proves nothing about the worker."""


class SlotHandle:
    """A slot on a certain worker.

    Parameters
    ----------
    client : distributed.Client
        A connected client whose loop this runs on.
    address : str
        The worker that it is on.
    key : str
        Its key in Dask, never used before.
    priority : float, default=0
        Dask's priority of the task that creates it.
    """

    def __init__(self, client: Client, address: str, key: str, *, priority: float = 0) -> None:
        self.address = address
        self.key = key
        #: When it had nothing to do any more, on the loop's clock.
        self.idle_since = 0.0
        #: What holds its resources in Dask's books; None while it has nothing to do.
        self.lease: Lease | None = None
        #: What holds the resources of a trial's other bundles, on other workers.
        self.helpers: list[Lease] = []
        self._closed = False
        self._client = client
        self._priority = priority
        self._future: Any = None
        self._actor: Any = None

    @property
    def is_open(self) -> bool:
        """Whether it can be called."""
        return self._actor is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody else has made Dask forget it, who restarts all workers for one."""
        return self._future is not None and self._future.status == "cancelled"

    async def open(self, **settings: Any) -> None:
        """Create the actor; `settings` are the keyword arguments of `TrialSlot`.

        Raises
        ------
        SlotFailed
            If it is not there before the deadline. A pinned task whose worker has died would wait
            for ever.
        """
        # The handle binds to the client that is current when it arrives.
        with self._client.as_current():
            self._future = self._client.submit(
                opaque(TrialSlot),
                self.key,
                **settings,
                key=self.key,
                actor=True,
                pure=False,
                workers=[self.address],
                allow_other_workers=False,
                priority=self._priority,
            )
            try:
                await asyncio.wait_for(_result(self._future), _OPEN_DEADLINE)
                # Not what the future holds: from a worker in this very process that is the worker's
                # own handle, which works on the worker's loop, and nobody would wake ours.
                self._actor = Actor(TrialSlot, self.address, self.key)
            except Exception as error:
                raise SlotFailed(f"no slot could be made on {self.address}: {error!r}") from error

    async def exchange(self, request: Request) -> Reply:
        """Call the worker through this slot, about all the slots there.

        Raises
        ------
        SlotFailed
            If there is no answer before the deadline, or none that can be read.
        Refused
            If the worker answers that it cannot.
        """
        reply: Reply = await self._call("exchange", request, CALL_DEADLINE)
        return reply

    async def carry(self, carriage: Carriage) -> Any:
        """Take a step of carrying something for a trial on the worker.

        Raises
        ------
        SlotFailed, Refused
            As for :meth:`exchange`.
        """
        return await self._call("carry", carriage, _CARRY_DEADLINE)

    async def _call(self, method: str, value: Any, deadline: float) -> Any:
        blob = seal(value)
        try:
            answer = await asyncio.wait_for(_settled(self._actor, method, blob), deadline)
        except asyncio.TimeoutError:
            raise SlotFailed(f"{self.address} did not answer within {deadline:.0f} s") from None
        except Exception as error:  # a lost connection shows in many ways
            raise SlotFailed(f"{self.address} cannot be reached: {error!r}") from error
        return open_reply(answer)

    async def close(self) -> None:
        """Let Dask forget slot and lease, however far they have come; a trial in it is stopped."""
        self._closed = True
        await asyncio.gather(self._forget(), *(one.release() for one in self.hand_over_leases()))

    def check_wanted(self) -> None:
        """See to it that nothing is taken for a slot that was closed meanwhile.

        Raises
        ------
        SlotFailed
            If it was.
        """
        if self._closed:
            raise SlotFailed(f"the slot {self.key} was given up before it was ready")

    def hand_over_leases(self) -> list[Lease]:
        """Return all leases, for which the slot does not care any more."""
        leases = [*([] if self.lease is None else [self.lease]), *self.helpers]
        self.lease, self.helpers = None, []
        return leases

    async def _forget(self) -> None:
        future, self._future, self._actor = self._future, None, None
        if future is None or future.cancelled():
            return
        try:
            await asyncio.wait_for(_cancel(future), _CLOSE_DEADLINE)
        except Exception as error:
            # A scheduler that is gone has forgotten it already.
            logger.info("the slot %s could not be given back: %r", self.key, error)


async def _result(future: Any) -> Any:
    return await future


async def _cancel(future: Any) -> None:
    await future.cancel()


async def _settled(actor: Any, method: str, blob: bytes) -> bytes:
    # An actor whose worker was lost raises on the look-up of the method already.
    answer: bytes = await getattr(actor, method)(blob)
    return answer
