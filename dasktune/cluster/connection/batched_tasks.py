"""Submits tasks for different workers that are submitted at the same time in one message.

Each message with tasks costs the scheduler about 2 ms, however few there are, and an experiment
submits two tasks for each actor. Everything here runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import cloudpickle
import dask

from dasktune.cluster.connection.by_value import of_pickled
from dasktune.cluster.connection.futures import consume_exception

#: Most tasks of one message. The scheduler does nothing else while it reads one.
_MOST: Final = 256


@dataclass(slots=True, kw_only=True)
class _Task:
    key: str
    #: Its pickled arguments.
    blob: bytes
    #: What the scheduler must know of it, by Dask's names.
    annotations: Mapping[str, Any]
    #: Gets the Dask future.
    submitted: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


#: The tasks of a message have one function, one priority and the same names of annotations, and all
#: or none of them create actors.
_Kind = tuple[Callable[..., Any], float, bool, frozenset[str]]


class BatchedTasks:
    """Submits tasks that each run on a given worker.

    Tasks that are submitted in the same pass of the event loop are sent together.

    Parameters
    ----------
    client : distributed.Client
        A connected client on whose loop all methods must be called.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: dict[_Kind, list[_Task]] = {}

    async def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        key: str,
        address: str,
        named: Mapping[str, Any] | None = None,
        priority: float = 0,
        resources: Mapping[str, float] | None = None,
        annotations: Mapping[str, Any] | None = None,
        actor: bool = False,
    ) -> Any:
        """Submit a task, and return its Dask future.

        Parameters
        ----------
        function : callable
            A function, coroutine function or class of a module that the worker can import.
        *args : object
            Its arguments, which only the worker unpickles. They must not contain futures.
        key : str
            The task's key, never used before.
        address : str
            The only worker that may run it.
        named : mapping of str to object, optional
            Its keyword arguments.
        priority : float, default=0
            Dask's priority.
        resources : mapping of str to float, optional
            The worker's resources that it needs.
        annotations : mapping, optional
            What else the scheduler and its plugins must know of it.
        actor : bool, default=False
            Whether it creates an actor.

        Returns
        -------
        distributed.Future
            The future. A caller that is cancelled meanwhile drops it, and so its task.
        """
        found = {"workers": [address], **(annotations or {})}
        if resources:
            found["resources"] = dict(resources)
        kind = function, priority, actor, frozenset(found)
        task = _Task(key=key, blob=cloudpickle.dumps((args, named or {})), annotations=found)
        # The caller may have been cancelled, and then retrieves no exception.
        task.submitted.add_done_callback(consume_exception)
        if kind not in self._waiting:
            self._waiting[kind] = []
            # In the next pass of the loop, after all tasks of this one.
            asyncio.get_running_loop().call_soon(self._send, kind)
        self._waiting[kind].append(task)
        return await task.submitted

    def _send(self, kind: _Kind) -> None:
        waiting = self._waiting.pop(kind)
        for first in range(0, len(waiting), _MOST):
            some = waiting[first : first + _MOST]
            try:
                futures = self._send_some(kind, some)
            except Exception as error:  # the client may be closed
                for task in some:
                    if not task.submitted.done():
                        task.submitted.set_exception(error)
                continue
            for task, future in zip(some, futures, strict=True):
                # The future of a caller that was cancelled is dropped here, which releases its key.
                if not task.submitted.done():
                    task.submitted.set_result(future)

    def _send_some(self, kind: _Kind, tasks: list[_Task]) -> list[Any]:
        function, priority, actor, names = kind
        # The scheduler calls an annotation that is callable with the key of each task. A bound
        # method of a dictionary pickles without dasktune, which the scheduler may lack.
        of_keys = {name: {task.key: task.annotations[name] for task in tasks}.get for name in names}
        # A Dask future binds to the client that is current when its result arrives.
        with self._client.as_current(), dask.annotate(**of_keys):
            futures: list[Any] = self._client.map(
                of_pickled(function),
                [task.blob for task in tasks],
                key=[task.key for task in tasks],
                pure=False,
                retries=0,
                allow_other_workers=False,
                priority=priority,
                actor=actor,
            )
        return futures
