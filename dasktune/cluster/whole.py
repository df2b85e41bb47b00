"""Collections that trials need as a whole: the blocks stay on the workers, and are joined there."""

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

from dasktune.cluster.blocks import cut, length
from dasktune.cluster.code import pack
from dasktune.cluster.connect import connect
from dasktune.cluster.here import leaving_the_pool
from dasktune.cluster.large_objects import as_data
from dasktune.cluster.opaque import opaque
from dasktune.trainable.shared_objects import frames_of

__all__ = ["PlacedWhole", "placed_whole"]


class PlacedWhole:
    """A collection whose blocks are on the workers, for as long as this is held.

    What is on a worker that dies is computed again from the collection.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    parts : sequence of distributed.Future
        The blocks.
    took : float
        Seconds in which they were computed.
    """

    def __init__(self, client: Client, parts: Sequence[Future], took: float) -> None:
        self._client = client
        self._parts = list(parts)
        facts = client.gather(client.map(opaque(_facts), self._parts, pure=False))
        #: How many rows there are.
        self.length: int = sum(rows for rows, _ in facts)
        #: How many bytes.
        self.size: int = sum(size for _, size in facts)
        #: Seconds that it may take to compute the blocks again.
        self.patience = 2.0 * took
        #: The same without a row.
        self.empty: Any = client.submit(opaque(_empty), self._parts[0], pure=False).result()

    def begin(self, client: Client, key: str, address: str) -> Future:
        """Have a worker join the blocks, and return the future of the frames of the whole.

        Parameters
        ----------
        client : distributed.Client
            Any of this cluster.
        key : str
            How the frames are called.
        address : str
            The worker.
        """
        parts = [Future(part.key, client) for part in self._parts]
        return client.submit(
            opaque(_frames),
            parts,
            key=key,
            pure=False,
            workers=[address],
            # If it is lost, another one joins them again.
            allow_other_workers=True,
        )

    def gather(self) -> Any:
        """Return the whole, here."""
        with leaving_the_pool():
            return joined(self._client.gather(self._parts))

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Return what a function gives for each block, where that is."""
        with leaving_the_pool():
            futures = self._client.map(opaque(function), self._parts, pure=False)
            found: list[Any] = self._client.gather(futures)
        return found

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function gives for the whole, which comes together on one worker.

        Parameters
        ----------
        function : callable
            ``function(whole, *arguments)``.
        *arguments : object
            They may hold the user's code, which travels as that of a trial does.
        """
        blob = pack({"call": (function, arguments)})
        with leaving_the_pool():
            # As data: a model or all targets would be much for a task graph.
            sent = self._client.scatter([blob], hash=False)[0]
            task = self._client.submit(opaque(_called), sent, self._parts, pure=False)
            return pickle.loads(task.result())


@contextmanager
def placed_whole(client: Any, X: Any, others: Any) -> Iterator[tuple[PlacedWhole, Any]]:
    """Compute a collection on a cluster and keep it there, and yield it with what else there is.

    Parameters
    ----------
    client : object
        What names the cluster.
    X : Dask array or data frame
        The collection.
    others : object
        Tuples, lists and dicts are looked into for collections. They come to this process; what
        they have in common with X is computed once.
    """
    with connect(client) as connection:
        own = connection.client
        begun = time.monotonic()
        with leaving_the_pool():
            collections, repack = unpack_collections(others)
            X, *kept = own.persist([X, *collections])
            if kept:
                (others,) = repack(own.gather(own.compute(kept)))
            del kept
            parts = own.compute(cut(X))
            # They are what is kept.
            del X
            own.gather(own.map(opaque(length), parts, pure=False))
            whole = PlacedWhole(own, parts, time.monotonic() - begun)
        yield whole, others


def joined(parts: Sequence[Any]) -> Any:
    """Return one thing of several blocks, as Dask itself would compute it.

    Parameters
    ----------
    parts : sequence
        Arrays of one kind, or data frames.

    Examples
    --------
    >>> import numpy as np
    >>> joined([np.ones((1, 2)), np.zeros((0, 2)), np.zeros((1, 2))])
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
    return as_data(frames_of(joined(parts)))


def _called(blob: bytes, parts: list[Any]) -> bytes:
    function, arguments = pickle.loads(blob)["call"]
    # As bytes: what the user's code has defined Dask may not be able to send.
    done: bytes = cloudpickle.dumps(function(joined(parts), *arguments))
    return done
