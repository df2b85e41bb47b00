"""The driver's handle of an actor on a worker. Its calls have deadlines.

Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Client
from distributed.actor import ProxyRPC
from distributed.utils import wait_for

from dasktune.cluster.connection.batched_tasks import BatchedTasks
from dasktune.cluster.connection.futures import cancel, ended
from dasktune.cluster.protocol.wire_messages import (
    ACTOR_CALL,
    Reply,
    Request,
    TransferCall,
    dumps,
    open_reply,
)
from dasktune.cluster.resources.resource_lease import ResourceLease
from dasktune.cluster.worker.trial_actor import TrialActor

#: Seconds that a call may take at first. It is short, because no method of an actor waits for user
#: code, and a call that was lost on the way is repeated soon.
CALL_DEADLINE = 5.0

#: Seconds that one step of a checkpoint transfer may take.
_TRANSFER_DEADLINE = 60.0

#: Seconds that cancelling the actor's task on the scheduler may take.
_CLOSE_DEADLINE = 5.0

logger = logging.getLogger(__name__)


class ActorCallFailed(Exception):
    """An actor could not be created, or did not answer. The worker may still be healthy.

    Parameters
    ----------
    message : str
        What happened.
    timed_out : bool, default=False
        Whether a deadline was missed and nothing else is known to be wrong.
    """

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class ActorHandle:
    """An actor on a given worker.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    tasks : BatchedTasks
        Submits the task that creates the actor.
    address : str
        The worker's address.
    key : str
        The actor's key in Dask, never used before.
    priority : float, default=0
        Dask's priority of the task that creates the actor.
    """

    def __init__(
        self, client: Client, tasks: BatchedTasks, address: str, key: str, *, priority: float = 0
    ) -> None:
        self.address = address
        self.key = key
        #: When the actor last became idle, on the loop's clock.
        self.idle_since = 0.0
        #: The lease of the actor's resources on its own worker. None until a trial needs one, and
        #: after an idle actor has released it.
        self.lease: ResourceLease | None = None
        #: The leases of the trial's other bundles, on other workers.
        self.helper_leases: list[ResourceLease] = []
        self._closed = False
        self._client, self._tasks = client, tasks
        self._priority = priority
        self._future: Any = None
        self._is_created = False

    @property
    def is_open(self) -> bool:
        """Whether the actor can be called."""
        return self._is_created

    @property
    def is_cancelled(self) -> bool:
        """Whether the actor's future was cancelled, for example by `Client.restart()`."""
        return self._future is not None and self._future.status == "cancelled"

    async def open(self, timeout_s: float, **settings: Any) -> None:
        """Create the actor.

        Parameters
        ----------
        timeout_s : float
            Seconds that this may take; the actor's constructor runs no user code.
        **settings : object
            The keyword arguments of `TrialActor`.

        Raises
        ------
        ActorCallFailed
            If the actor is not created before the deadline. Without a deadline the driver would
            wait for ever if the worker has died, because the task may run on no other worker.
        """
        self._future = await self._tasks.submit(
            TrialActor,
            self.key,
            key=self.key,
            address=self.address,
            named=settings,
            priority=self._priority,
            actor=True,
        )
        if self._closed:
            # It was closed while it was submitted.
            await self._release_future()
        self.check_not_closed()
        # A Dask future binds to the client that is current when its result arrives.
        with self._client.as_current():
            try:
                # The future's result, Dask's own handle, is not fetched: that takes a further
                # connection to the worker and a call, and it would not be used.
                await wait_for(ended(self._future), timeout_s)
                self._is_created = True
            except asyncio.TimeoutError:
                reason = f"{self.address} did not create an actor within {timeout_s:.0f} s"
                raise ActorCallFailed(reason, timed_out=True) from None
            except Exception as error:
                raise ActorCallFailed(f"no actor could be created on {self.address}: {error!r}") from error

    async def poll(self, request: Request, deadline_s: float = CALL_DEADLINE) -> Reply:
        """Poll the worker's endpoint, which has the trials of all its actors.

        The deadline ends only the driver's wait. The worker may still run the call later, so its
        endpoint accepts the same poll more than once.

        Parameters
        ----------
        request : Request
            What the driver has for the worker.
        deadline_s : float, default=5.0
            Seconds to wait for the answer.

        Raises
        ------
        ActorCallFailed
            If there is no answer before the deadline, or the worker cannot be reached.
        Refused
            If the worker raised an exception in the call.
        """
        reply: Reply = await self._call("poll", request, deadline_s)
        return reply

    async def transfer_step(self, request: TransferCall) -> Any:
        """Perform one step of a transfer on the worker.

        Raises
        ------
        ActorCallFailed, Refused
            As for :meth:`poll`.
        """
        return await self._call("transfer_step", request, _TRANSFER_DEADLINE)

    async def _call(self, method: str, value: Any, deadline: float) -> Any:
        blob = dumps(value)
        try:
            answer = await wait_for(self._execute(method, blob), deadline)
        except asyncio.TimeoutError:
            reason = f"{self.address} did not answer within {deadline:.0f} s"
            raise ActorCallFailed(reason, timed_out=True) from None
        except ActorCallFailed:
            raise
        except Exception as error:  # a lost connection raises many kinds of exceptions
            raise ActorCallFailed(f"{self.address} cannot be reached: {error!r}") from error
        return open_reply(answer)

    async def _execute(self, method: str, blob: bytes) -> bytes:
        # Through the scheduler if this process cannot reach the workers.
        is_direct = self._client.direct_to_workers
        worker = (
            self._client.rpc(self.address) if is_direct else ProxyRPC(self._client.scheduler, self.address)
        )
        answer: Any = await getattr(worker, ACTOR_CALL)(actor=self.key, method=method, blob=blob)
        if answer is None:
            # Dask's answer, too, where no actor has added the operation.
            raise ActorCallFailed(f"{self.address} has no actor {self.key}, which Dask has released")
        reply: bytes = answer
        return reply

    async def close(self) -> None:
        """Release the actor and its leases in Dask, in any state. The worker then stops its trial.

        `make_ready` may be running for this actor. It calls :meth:`check_not_closed` before each
        new lease or task, so it creates nothing that this call would not release.
        """
        self._closed = True
        await asyncio.gather(self._release_future(), *(one.release() for one in self.detach_leases()))

    def check_not_closed(self) -> None:
        """Check that the actor has not been closed while it was being made ready.

        Raises
        ------
        ActorCallFailed
            If it has been closed.
        """
        if self._closed:
            raise ActorCallFailed(f"the actor {self.key} was closed before it was ready")

    def detach_leases(self) -> list[ResourceLease]:
        """Return all leases and forget them; the caller releases them."""
        leases = [*([] if self.lease is None else [self.lease]), *self.helper_leases]
        self.lease, self.helper_leases = None, []
        return leases

    async def _release_future(self) -> None:
        future, self._future, self._is_created = self._future, None, False
        if future is None or future.cancelled():
            return
        try:
            await wait_for(cancel(future), _CLOSE_DEADLINE)
        except Exception as error:
            # A scheduler that was lost or restarted no longer has the actor.
            logger.info("the actor %s could not be released: %r", self.key, error)
