"""The blocks of Dask collections, kept on the workers for trials that read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dask.base import is_dask_collection
from distributed import Client, Future

from dasktune.cluster.collections import computed
from dasktune.cluster.connect import connect
from dasktune.cluster.here import leaving_the_pool
from dasktune.errors import check
from dasktune.trainable.nested import get_client

__all__ = ["PlacedBlocks", "blocks_here", "fetched", "partitions", "placed_blocks"]

#: Makes a block of its part of X and its part of y, which is None if there is none.
Make = Callable[[Any, Any], Any]


class PlacedBlocks:
    """Blocks on the workers, for as long as this is held.

    What is on a worker that dies is computed again from the collection. All methods wait.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    futures : sequence of distributed.Future
        One for each block.
    """

    def __init__(self, client: Client, futures: Sequence[Future]) -> None:
        self._client = client
        self._futures = list(futures)
        #: How many samples each block has.
        self.sizes: list[int] = client.gather(client.map(len, self._futures, pure=False))

    @property
    def keys(self) -> list[str]:
        """The names by which :func:`fetched` finds the blocks on a worker."""
        return [str(future.key) for future in self._futures[: len(self.sizes)]]

    def joined(
        self,
        part: Callable[[Any, Any], Any],
        arguments: Iterable[Any],
        join: Callable[[list[Any]], Any],
    ) -> str:
        """Keep something of all blocks on one worker, and return its name.

        Parameters
        ----------
        part : callable
            ``part(block, argument)`` runs where the block is.
        arguments : iterable
            One for each block.
        join : callable
            Makes one of all parts, in their order.
        """
        blocks = self._futures[: len(self.sizes)]
        parts = [
            self._client.submit(part, block, argument, pure=False)
            for block, argument in zip(blocks, arguments, strict=True)
        ]
        whole = self._client.submit(join, parts, pure=False)
        self._futures.append(whole)
        return str(whole.key)

    def fetch(self, key: str) -> Any:
        """Return what has been joined.

        Parameters
        ----------
        key : str
            Its name.
        """
        (future,) = (future for future in self._futures if future.key == key)
        return future.result()


def fetched(key: str) -> Any:
    """Return something that is kept on the cluster, in a trial there.

    Parameters
    ----------
    key : str
        Its name in Dask. It is waited for while it is computed again.
    """
    client = get_client()
    # A client hears only of what it has asked for, and it is asked for as what a task needs.
    return client.submit(_itself, Future(key, client), pure=False).result()


def _itself(thing: Any) -> Any:
    return thing


@contextmanager
def placed_blocks(client: Any, X: Any, y: Any, make: Make) -> Iterator[PlacedBlocks]:
    """Compute the blocks of a data set on a cluster, and keep them there.

    Parameters
    ----------
    client : object
        What names the cluster.
    X : Dask array or data frame
        Its blocks along the first axis are the blocks; along any other it has only one.
    y : Dask array, data frame or series, array-like, or None
        Is cut as X is.
    make : callable
        ``make(X, y)`` makes a block where its parts are.

    Raises
    ------
    ConfigError
        If y cannot be cut as X is.
    """
    with leaving_the_pool(), connect(client) as connection:
        own = connection.client
        parts = own.compute(_cut(X))
        if y is None:
            targets: Sequence[Any] = [None] * len(parts)
        elif is_dask_collection(y):
            targets = own.compute(_cut_like(y, X))
        else:
            sizes = own.gather(own.map(len, parts, pure=False))
            targets = _slices(y, sizes)
        _check_count(targets, parts)
        yield PlacedBlocks(
            own, [own.submit(make, *pair, pure=False) for pair in zip(parts, targets, strict=True)]
        )


def blocks_here(X: Any, y: Any, make: Make) -> list[Any]:
    """Return the blocks of a data set, computed without a cluster.

    Parameters
    ----------
    X, y, make
        As for :func:`placed_blocks`.
    """
    parts = computed(None, _cut(X))
    if y is None:
        targets: Sequence[Any] = [None] * len(parts)
    elif is_dask_collection(y):
        targets = computed(None, _cut_like(y, X))
    else:
        targets = _slices(y, [len(part) for part in parts])
    _check_count(targets, parts)
    return [make(part, target) for part, target in zip(parts, targets, strict=True)]


def _cut(collection: Any) -> list[Any]:
    """Return the blocks of a collection along its first axis."""
    if hasattr(collection, "rechunk") and any(n > 1 for n in collection.numblocks[1:]):
        collection = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    blocks = collection.to_delayed()
    return list(blocks.ravel()) if hasattr(blocks, "ravel") else list(blocks)


def _cut_like(y: Any, X: Any) -> list[Any]:
    both = hasattr(y, "rechunk") and hasattr(X, "rechunk")
    # Not a number, and so not equal to itself, is a length that is not known.
    if both and X.chunks[0] != y.chunks[0] and sum(X.chunks[0]) == sum(y.chunks[0]):
        y = y.rechunk({0: X.chunks[0]})
    return _cut(y)


def _slices(y: Any, sizes: Sequence[int]) -> list[Any]:
    _check_length(len(y), sum(sizes))
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    rows = y.iloc if hasattr(y, "iloc") else y
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _check_length(own: int, wanted: int) -> None:
    check(own == wanted, "y", f"as long as X, {wanted} samples", f"{own} samples")


def _check_count(targets: Sequence[Any], parts: Sequence[Any]) -> None:
    own, wanted = len(targets), len(parts)
    hint = "Rechunk or repartition it."
    check(own == wanted, "y", f"in as many blocks as X, {wanted}", f"{own} blocks", hint)


def partitions(collection: Any) -> int:
    """Return how many blocks a collection has along its first axis.

    Parameters
    ----------
    collection : Dask array or data frame
        The collection.

    Examples
    --------
    >>> import dask.array
    >>> partitions(dask.array.ones((4, 2), chunks=(2, 1)))
    2
    """
    return int(
        collection.numblocks[0] if hasattr(collection, "numblocks") else collection.npartitions
    )
