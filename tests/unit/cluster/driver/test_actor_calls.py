"""What an actor's handle sends to its worker, counted on a client that only records it."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.connection.batched_tasks import BatchedTasks
from dasktune.cluster.driver.actor_handle import ActorCallFailed, ActorHandle
from dasktune.cluster.protocol.wire_messages import ACTOR_CALL, Reply, Request
from dasktune.cluster.resources.resource_lease import LeaseFailed, ResourceLease
from dasktune.placement import Claim

ADDRESS = "tcp://10.0.0.1:4000"


class Future:
    """The future of an actor that exists; it counts how often its result is fetched."""

    status = "finished"
    fetched = 0
    is_cancelled = False

    def cancelled(self) -> bool:
        return self.is_cancelled

    async def cancel(self) -> None:
        self.is_cancelled = True

    async def exception(self) -> None: ...

    def __await__(self) -> Any:
        self.fetched += 1
        return asyncio.sleep(0).__await__()


class Client:
    def __init__(self, *, answers: list[Any], direct_to_workers: bool = True) -> None:
        self.direct_to_workers = direct_to_workers
        self.future = Future()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    def as_current(self) -> Any:
        return nullcontext()

    def map(self, *args: Any, **options: Any) -> list[Future]:
        return [self.future]

    def rpc(self, address: str) -> Any:
        assert self.direct_to_workers

        async def call(**message: Any) -> Any:
            return self._answer(address, message)

        return SimpleNamespace(**{ACTOR_CALL: call})

    @property
    def scheduler(self) -> Any:
        async def proxy(worker: str, msg: dict[str, Any]) -> Any:
            assert msg.pop("op") == ACTOR_CALL
            return self._answer(worker, msg)

        return SimpleNamespace(proxy=proxy)

    def _answer(self, address: str, message: dict[str, Any]) -> Any:
        self.calls.append((address, message))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer and pickle.dumps(("ok", answer))


def test_a_new_actor_is_not_fetched_from_its_worker() -> None:
    async def work() -> ActorHandle:
        actor = ActorHandle(client, BatchedTasks(client), ADDRESS, "actor-1")
        await actor.open(60.0)
        return actor

    client: Any = Client(answers=[])
    assert asyncio.run(work()).is_open
    assert client.future.fetched == 0
    assert client.calls == []


def test_an_actor_that_is_closed_while_it_is_submitted_is_released() -> None:
    async def work() -> None:
        actor = ActorHandle(client, BatchedTasks(client), ADDRESS, "actor-1")
        opening = asyncio.ensure_future(actor.open(60.0))
        await asyncio.sleep(0)
        await actor.close()
        with pytest.raises(ActorCallFailed, match="was closed before it was ready"):
            await opening
        assert not actor.is_open

    client: Any = Client(answers=[])
    asyncio.run(work())
    assert client.future.is_cancelled


def test_a_lease_that_is_released_while_it_is_submitted_holds_nothing() -> None:
    async def work() -> None:
        claim = Claim(resources={"CPU": 1})
        lease = ResourceLease(BatchedTasks(client), ADDRESS, "actor-1", claim, home=ADDRESS)
        acquiring = asyncio.ensure_future(lease.acquire("plugin", "topic", timeout_s=60.0))
        await asyncio.sleep(0)
        await lease.release()
        with pytest.raises(LeaseFailed, match="was released"):
            await acquiring
        assert not lease.is_held

    client: Any = Client(answers=[])
    asyncio.run(work())
    assert client.future.is_cancelled


@pytest.mark.parametrize("direct", [True, False])
def test_a_poll_is_one_call_to_the_worker_or_through_the_scheduler(direct: bool) -> None:
    async def work() -> list[Any]:
        actor = ActorHandle(client, BatchedTasks(client), ADDRESS, "actor-1")
        await actor.open(60.0)
        replies: list[Any] = [await actor.poll(Request(number=7))]
        with pytest.raises(ActorCallFailed, match="as planned"):
            await actor.poll(Request(number=8))
        return replies

    reply = Reply(reports=())
    client: Any = Client(answers=[reply, ValueError("as planned")], direct_to_workers=direct)
    assert asyncio.run(work()) == [reply]
    (address, message), _ = client.calls
    assert address == ADDRESS
    assert pickle.loads(message.pop("blob")) == Request(number=7)
    assert message == {"actor": "actor-1", "method": "poll"}


def test_a_worker_that_never_had_an_actor_fails_the_call() -> None:
    async def work() -> None:
        actor = ActorHandle(client, BatchedTasks(client), ADDRESS, "actor-1")
        await actor.open(60.0)
        with pytest.raises(ActorCallFailed, match="has no actor actor-1"):
            await actor.poll(Request(number=7))

    # Dask answers so if it does not know the operation.
    client: Any = Client(answers=[None])
    asyncio.run(work())
