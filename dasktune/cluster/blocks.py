"""The blocks of Dask collections, kept on the workers for trials that read one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from distributed import Client, Future

from dasktune.cluster.collections import computed, is_collection
from dasktune.cluster.connect import connect
from dasktune.cluster.here import leaving_the_pool
from dasktune.errors import check
from dasktune.trainable.nested import get_client

__all__ = [
    "PlacedBlocks",
    "blocks_here",
    "cut",
    "fetched",
    "length",
    "partitions",
    "placed_blocks",
]

#: Makes a block of its part of X, its part of y, which is None if there is none, the names of what
#: else there is of each sample, and its part of each of these.
Make = Callable[..., Any]

#: Tells whether something in memory has a value for each of so many samples.
Belongs = Callable[[Any, int], bool]


class PlacedBlocks:
    """Blocks on the workers, for as long as this is held.

    What is on a worker that dies is computed again from the collection. All methods wait.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    futures : sequence of distributed.Future
        One for each block.
    others : mapping
        What belongs to the data set as a whole, by name.
    """

    def __init__(
        self, client: Client, futures: Sequence[Future], others: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._futures = list(futures)
        self.others = dict(others)
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
def placed_blocks(
    client: Any, X: Any, y: Any, make: Make, more: Mapping[str, Any], belongs: Belongs
) -> Iterator[PlacedBlocks]:
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
        ``make(X, y, names, *values)`` makes a block where its parts are.
    more : mapping
        What goes along with them, by name. What has a value for each sample is cut as X is; the
        rest are ``others`` of the blocks.
    belongs : callable
        ``belongs(value, size)`` tells whether something in memory has a value for each sample.

    Raises
    ------
    ConfigError
        If y cannot be cut as X is.
    """
    with leaving_the_pool(), connect(client) as connection:
        own = connection.client
        parts = own.compute(cut(X))
        sizes = own.gather(own.map(length, parts, pure=False))
        knife = _Cut(X, sizes, own.compute)
        targets, columns, others = knife.beside(y, more, belongs)
        blocks = [
            own.submit(make, part, target, tuple(columns), *values, pure=False)
            for part, target, *values in zip(parts, targets, *columns.values(), strict=True)
        ]
        # The blocks hold what they were made of.
        del parts, targets, columns
        yield PlacedBlocks(own, blocks, others)


def blocks_here(
    X: Any, y: Any, make: Make, more: Mapping[str, Any], belongs: Belongs
) -> tuple[list[Any], dict[str, Any]]:
    """Return the blocks of a data set, computed without a cluster, and what belongs to all of it.

    Parameters
    ----------
    X, y, make, more, belongs
        As for :func:`placed_blocks`.
    """
    parts = computed(None, cut(X))
    knife = _Cut(X, [length(part) for part in parts], partial(computed, None))
    targets, columns, others = knife.beside(y, more, belongs)
    blocks = [
        make(part, target, tuple(columns), *values)
        for part, target, *values in zip(parts, targets, *columns.values(), strict=True)
    ]
    return blocks, others


class _Cut:
    """Cuts what belongs to X as X is cut."""

    def __init__(self, X: Any, sizes: Sequence[int], compute: Callable[[Any], Any]) -> None:
        self._X = X
        self._sizes = sizes
        self._compute = compute

    def beside(
        self, y: Any, more: Mapping[str, Any], belongs: Belongs
    ) -> tuple[Sequence[Any], dict[str, Sequence[Any]], dict[str, Any]]:
        """Return the parts of y, those of what else has a value for each sample, and the rest."""
        size = sum(self._sizes)
        targets = [None] * len(self._sizes) if y is None else self._parts("y", y)
        columns, others = {}, {}
        for name, value in more.items():
            judge = _is_cut_like if is_dask_collection(value) else belongs
            if judge(value, size):
                columns[name] = self._parts(name, value)
            else:
                others[name] = value
        return targets, columns, others

    def _parts(self, name: str, value: Any) -> Sequence[Any]:
        if not is_dask_collection(value):
            return _slices(name, value, self._sizes)
        parts: Sequence[Any] = self._compute(_cut_like(value, self._X))
        own, wanted = len(parts), len(self._sizes)
        hint = "Rechunk or repartition it."
        check(own == wanted, name, f"in as many blocks as X, {wanted}", f"{own} blocks", hint)
        return parts


def _is_cut_like(value: Any, size: int) -> bool:
    """Whether a collection has a value for each sample."""
    if not is_collection(value):
        return False
    # Of a data frame nobody knows the length, and it has rows for nothing else than the samples.
    lengths = value.chunks[0] if hasattr(value, "rechunk") and value.ndim else (np.nan,)
    return bool(np.isnan(sum(lengths)) or sum(lengths) == size)


def length(part: Any) -> int:
    """Return how many rows something has; sparse matrices have no ``len``.

    Parameters
    ----------
    part : object
        An array, a data frame, or anything with a length.

    Examples
    --------
    >>> length([1, 2])
    2
    """
    return len(part) if getattr(part, "shape", None) is None else int(part.shape[0])


def cut(collection: Any) -> list[Any]:
    """Return the blocks of a collection along its first axis, none of them computed.

    Parameters
    ----------
    collection : Dask array or data frame
        The collection.

    Examples
    --------
    >>> import dask.array
    >>> len(cut(dask.array.ones((4, 2), chunks=(2, 1))))
    2
    """
    if hasattr(collection, "rechunk") and any(n > 1 for n in collection.numblocks[1:]):
        collection = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    blocks = collection.to_delayed()
    return list(blocks.ravel()) if hasattr(blocks, "ravel") else list(blocks)


def _cut_like(y: Any, X: Any) -> list[Any]:
    both = hasattr(y, "rechunk") and hasattr(X, "rechunk")
    # Not a number, and so not equal to itself, is a length that is not known.
    if both and X.chunks[0] != y.chunks[0] and sum(X.chunks[0]) == sum(y.chunks[0]):
        y = y.rechunk({0: X.chunks[0]})
    return cut(y)


def _slices(name: str, value: Any, sizes: Sequence[int]) -> list[Any]:
    own, wanted = length(value), sum(sizes)
    check(own == wanted, name, f"as long as X, {wanted} samples", f"{own} samples")
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    rows = value.iloc if hasattr(value, "iloc") else value
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


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
