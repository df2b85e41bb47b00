"""Combines calls to different workers that are made at the same time into one message.

A call of ``Client.run`` for one worker costs the driver and the scheduler a message each way,
beside the one from the scheduler to the worker. If an experiment checks a thousand workers, each by
itself, these messages cost more than the checks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

from distributed.utils import wait_for

from dasktune.cluster.connection.by_value import pickled_once
from dasktune.cluster.connection.futures import consume_exception
from dasktune.placement import WorkerCapacity

#: Most seconds for which a call waits for the last call of the same function. The first is made at
#: once, and those that come until it has been answered are combined.
_INTERVAL: Final = 0.03

#: Most workers of a combined call.
_MOST: Final = 256

#: Most calls that are made by themselves at a time. Each needs a connection to the scheduler.
_MOST_ALONE: Final = 32
#: A call that takes longer than this part of a combined one no longer counts among them.
_TURNS: Final = 10

#: Seconds for which a combined call waits for its slowest worker. After that, each of its calls is
#: made by itself: a worker that hangs delays the others by no more than this.
_LONGEST: Final = 10.0


class BatchedCalls:
    """Makes calls like a client, and combines those that are made shortly after one another.

    All methods must be called on the client's event loop. The functions must be safe to repeat: if
    a combined call takes too long, its calls are made again one by one.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    longest_s : float, default=10
        Seconds for which a combined call may wait.
    """

    def __init__(self, client: Any, *, longest_s: float = _LONGEST) -> None:
        self._client = client
        self._longest_s = longest_s
        #: Whether a combined call has failed, so that some workers may run its function twice.
        self.has_repeated = False
        #: The calls that wait, by function: address, arguments, result.
        self._for_workers: defaultdict[Any, list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]]]
        self._for_workers = defaultdict(list)
        #: The same for calls to the scheduler, whose only argument is an address.
        self._for_scheduler: defaultdict[Any, list[tuple[str, asyncio.Future[None]]]] = defaultdict(list)
        #: The last call of each function.
        self._last: dict[Any, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = asyncio.Semaphore(_MOST_ALONE)

    async def run_on_worker(self, address: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a worker, as ``Client.run`` does, and return its result.

        Calls with the same function are combined, whatever their arguments are.

        Parameters
        ----------
        address : str
            The worker's address.
        function : callable
            The function, which the worker can unpickle.
        *args : object
            Its arguments.
        """
        calls = self._for_workers[function]
        if not calls:
            self._spawn(self._run_on_workers, function)
        result = self._new_result()
        calls.append((address, args, result))
        return await result

    async def tell_scheduler(self, function: Callable[[list[str], Any], None], address: str) -> None:
        """Run ``function(addresses, dask_scheduler)`` on the scheduler, for one worker.

        Parameters
        ----------
        function : callable
            The same object in each call that is to be combined.
        address : str
            The worker's address.
        """
        calls = self._for_scheduler[function]
        if not calls:
            self._spawn(self._run_on_scheduler, function)
        result = self._new_result()
        calls.append((address, result))
        await result

    @property
    def client(self) -> Any:
        """The client, for calls that are not to be combined with others."""
        return self._client

    def close(self) -> None:
        """Cancel all calls, also those that wait."""
        for task in self._tasks:
            task.cancel()
        for calls in self._for_workers.values():
            for *_, result in calls:
                result.cancel()
        for waiting in self._for_scheduler.values():
            for _, result in waiting:
                result.cancel()
        self._for_workers.clear()
        self._for_scheduler.clear()

    def _new_result(self) -> asyncio.Future[Any]:
        result = asyncio.get_running_loop().create_future()
        # The caller may have been cancelled, and then retrieves no exception.
        result.add_done_callback(consume_exception)
        return result

    def _spawn(self, work: Callable[[Any], Any], function: Any) -> None:
        last = self._last.get(function)

        async def call() -> None:
            # The task begins in the next pass of the loop, after all calls of this one.
            if last is not None:
                await asyncio.wait({last}, timeout=_INTERVAL)
            await work(function)

        task = self._last[function] = asyncio.get_running_loop().create_task(call())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_on_workers(self, function: Any) -> None:
        calls = self._for_workers.pop(function)
        answers: dict[str, Any] = {}
        # Two calls for one worker differ in their arguments, so only the first can be combined.
        arguments: dict[str, tuple[Any, ...]] = {}
        for address, args, _ in calls:
            arguments.setdefault(address, args)
        if len(arguments) > 1:
            found = await asyncio.gather(*(self._run_combined(function, some) for some in _parts(arguments)))
            answers = {address: answer for some in found for address, answer in some.items()}
        alone = []
        for address, args, result in calls:
            if address in answers and arguments[address] is args:
                _resolve(result, answers[address])
            else:
                alone.append(self._run_alone(function, address, args, result))
        await asyncio.gather(*alone)

    async def _run_combined(self, function: Any, arguments: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        combined = self._client.run(
            _dispatcher(), function, arguments, workers=list(arguments), on_error="return"
        )
        try:
            answers: dict[str, Any] = await asyncio.wait_for(combined, self._longest_s)
            return answers
        except Exception:  # too late, or the connection failed; each call finds out by itself
            self.has_repeated = True
            return {}

    async def _run_alone(
        self, function: Any, address: str, args: tuple[Any, ...], result: asyncio.Future[Any]
    ) -> None:
        call: asyncio.Future[dict[str, Any]] | None = None
        try:
            async with self._alone:
                if result.done():  # its caller waits no longer
                    return
                work = self._client.run(function, *args, workers=[address], on_error="return")
                call = asyncio.ensure_future(work)
                call.add_done_callback(consume_exception)
                # Others must not wait for their turn as long as for a worker that hangs.
                await asyncio.wait((call,), timeout=self._longest_s / _TURNS)
            await asyncio.wait((call, result), return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                _resolve(result, call.result()[address])
        except Exception as error:  # the scheduler or the connection may raise anything
            _resolve(result, error)
        finally:
            if call is not None:
                call.cancel()

    async def _run_on_scheduler(self, function: Any) -> None:
        calls = self._for_scheduler.pop(function)
        outcome: Exception | None = None
        try:
            await self._client.run_on_scheduler(function, [address for address, _ in calls])
        except Exception as error:
            outcome = error
        for _, result in calls:
            _resolve(result, outcome)


def _parts(arguments: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Split the arguments for many workers, because each of them gets those of its whole part."""
    addresses = list(arguments)
    for first in range(0, len(addresses), _MOST):
        yield {address: arguments[address] for address in addresses[first : first + _MOST]}


def _resolve(result: asyncio.Future[Any], outcome: Any) -> None:
    if result.done():  # its caller was cancelled
        return
    if isinstance(outcome, Exception):
        result.set_exception(outcome)
    else:
        result.set_result(outcome)


@pickled_once
def _dispatcher() -> Callable[..., Any]:
    """Return a function that calls another with a worker's own arguments.

    It is nested so that it pickles by value: the workers may lack dasktune.
    """

    async def dispatch(function: Any, arguments: dict[str, tuple[Any, ...]], dask_worker: Any) -> Any:
        from inspect import isawaitable

        from distributed.utils import has_arg

        own = {"dask_worker": dask_worker} if has_arg(function, "dask_worker") else {}
        # The address by which the scheduler knows it, which may be another one than it listens on.
        address = dask_worker.contact_address or dask_worker.address
        result = function(*arguments[address], **own)
        return await result if isawaitable(result) else result

    return dispatch


async def run_on_worker(
    client: Any, worker: WorkerCapacity, timeout_s: float, function: Any, *args: Any
) -> Any:
    """Run a function on a worker. An exception of the function or the connection is returned.

    The client may be a :class:`~dasktune.cluster.connection.batched_calls.BatchedCalls`.
    """
    calls = client if isinstance(client, BatchedCalls) else BatchedCalls(client)
    try:
        return await wait_for(calls.run_on_worker(worker.address, function, *args), timeout_s)
    except asyncio.TimeoutError:
        return TimeoutError(f"no answer within {timeout_s:g} s")
    except Exception as exc:  # the scheduler or the connection may raise any exception
        return exc
