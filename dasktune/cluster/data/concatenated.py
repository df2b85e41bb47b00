"""Persists Dask collections of which trials need all rows, and concatenates them on the workers."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
from dask.base import unpack_collections
from dask.sizeof import sizeof
from distributed import Client, Future

from dasktune.cluster.connection.by_value import by_value
from dasktune.cluster.connection.connect import connect
from dasktune.cluster.connection.task_context import seceded
from dasktune.cluster.data.broadcast import as_data
from dasktune.cluster.data.collections import as_delayed
from dasktune.cluster.data.partitions import length, to_partitions
from dasktune.cluster.protocol.pickling import dumps_user_code
from dasktune.trainable.data.shared_objects import frames_of


class PersistedCollection:
    """A collection whose partitions stay on the workers while this object exists.

    Dask recomputes a partition that is lost with its worker.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    parts : sequence of distributed.Future
        The partitions.
    took : float
        Seconds that computing them took.
    """

    def __init__(self, client: Client, parts: Sequence[Future], took: float) -> None:
        self._client = client
        self._parts = list(parts)
        facts = client.gather(client.map(by_value(_facts), self._parts, pure=False))
        #: Number of rows.
        self.length: int = sum(rows for rows, _ in facts)
        #: Size in bytes.
        self.size: int = sum(size for _, size in facts)
        #: Seconds that computing the partitions again may take.
        self.rebuild_seconds = 2.0 * took
        #: An empty array or data frame of the partitions' type.
        self.empty: Any = client.submit(by_value(_empty), self._parts[0], pure=False).result()

    def begin(self, client: Client, key: str, address: str) -> Future:
        """Concatenate the partitions on a worker, and return the future of the result's frames.

        Parameters
        ----------
        client : distributed.Client
            Any client of this cluster.
        key : str
            Key of the frames in Dask.
        address : str
            The address of the worker.
        """
        parts = [Future(part.key, client) for part in self._parts]
        return client.submit(
            by_value(_frames),
            parts,
            key=key,
            pure=False,
            workers=[address],
            # If the worker is lost, another one concatenates them again.
            allow_other_workers=True,
        )

    def gather(self) -> Any:
        """Fetch all partitions to this process, and return them concatenated."""
        with seceded():
            return concatenate(self._client.gather(self._parts))

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function for each partition, on the worker that has it, and return the results."""
        with seceded():
            futures = self._client.map(by_value(function), self._parts, pure=False)
            found: list[Any] = self._client.gather(futures)
        return found

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on one worker with the whole collection, and return its result.

        Parameters
        ----------
        function : callable
            ``function(whole, *arguments)``.
        *arguments : object
            Further arguments. They may contain user code, which is pickled like a trainable's.
        """
        blob = dumps_user_code({"call": (function, arguments)})
        with seceded():
            # Scattered as data, because a model or all targets may be too large for a task graph.
            sent = self._client.scatter([blob], hash=False)[0]
            task = self._client.submit(by_value(_called), sent, self._parts, pure=False)
            return pickle.loads(task.result())


@contextmanager
def persisted_collection(client: Any, X: Any, others: Any) -> Iterator[tuple[PersistedCollection, Any]]:
    """Compute a collection on a cluster and keep it there; yield it with the other values.

    Parameters
    ----------
    client : object
        The Dask cluster, as for :class:`~dasktune.Tuner`.
    X : Dask array, data frame or delayed object
        The collection.
    others : object
        The other values. Collections in their tuples, lists and dicts are computed and fetched to
        this process. Tasks that they share with X run once.
    """
    with connect(client) as connection:
        own = connection.client
        begun = time.monotonic()
        with seceded():
            collections, repack = unpack_collections(others)
            X, *kept = own.persist([X, *collections])
            if kept:
                (others,) = repack(own.gather(own.compute(as_delayed(kept))))
            del kept
            parts = own.compute(to_partitions(X))
            # From here on only the partitions stay in the workers' memory.
            del X
            own.gather(own.map(by_value(length), parts, pure=False))
            whole = PersistedCollection(own, parts, time.monotonic() - begun)
        yield whole, others


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate several partitions, as Dask itself would.

    Parameters
    ----------
    parts : sequence
        Arrays of one kind, or data frames.

    Examples
    --------
    >>> import numpy as np
    >>> concatenate([np.ones((1, 2)), np.zeros((0, 2)), np.zeros((1, 2))])
    array([[1., 1.],
           [0., 0.]])
    """
    parts = [part for part in parts if length(part)] or list(parts[:1])
    first = parts[0]
    if len(parts) == 1:
        return first
    if hasattr(first, "iloc"):
        from dask.dataframe.dispatch import concat

        return concat(list(parts))
    from dask.array.dispatch import concatenate_lookup

    leading = max(parts, key=lambda part: getattr(part, "__array_priority__", 0))
    return concatenate_lookup.dispatch(type(leading))(list(parts), axis=0)


def _facts(part: Any) -> tuple[int, int]:
    return length(part), int(sizeof(part))


def _empty(part: Any) -> Any:
    return part[:0]


def _frames(parts: list[Any]) -> list[Any]:
    return as_data(frames_of(concatenate(parts)))


def _called(blob: bytes, parts: list[Any]) -> bytes:
    function, arguments = pickle.loads(blob)["call"]
    # Returned as bytes, because Dask may be unable to pickle an object of a class in user code.
    done: bytes = cloudpickle.dumps(function(concatenate(parts), *arguments))
    return done
