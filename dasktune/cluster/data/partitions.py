"""Persists partitions of Dask collections on the workers, for trials that read them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from distributed import Client, Future

from dasktune.cluster.connection.connect import connect
from dasktune.cluster.connection.task_context import seceded
from dasktune.cluster.data.collections import compute, is_collection, is_delayed
from dasktune.errors import check
from dasktune.trainable.api.dask_client import get_client

#: ``make(X, y, names, *values)`` returns a block of the data set. Its arguments are a partition of
#: X, the same partition of y (or None), and the names and the same partitions of further values
#: with one entry per sample, such as weights.
Make = Callable[..., Any]

#: ``is_per_sample(value, size)`` returns whether a value in memory has one entry for each sample.
IsPerSample = Callable[[Any, int], bool]


class PersistedPartitions:
    """Blocks of a data set that stay on the workers while this object exists.

    Dask recomputes a block that is lost with its worker. All methods block.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    futures : sequence of distributed.Future
        One future for each block.
    others : mapping
        Values by name that belong to the whole data set and are not split.
    """

    def __init__(self, client: Client, futures: Sequence[Future], others: Mapping[str, Any]) -> None:
        self._client = client
        self._futures = list(futures)
        self.others = dict(others)
        #: Number of samples in each block.
        self.sizes: list[int] = client.gather(client.map(len, self._futures, pure=False))

    @property
    def keys(self) -> list[str]:
        """The keys by which :func:`fetch_key` finds the blocks on a worker."""
        return [str(future.key) for future in self._futures[: len(self.sizes)]]

    def join_parts(
        self, part: Callable[[Any, Any], Any], arguments: Iterable[Any], join: Callable[[list[Any]], Any]
    ) -> str:
        """Combine a part of each block on one worker, and return the key of the result.

        Parameters
        ----------
        part : callable
            ``part(block, argument)`` returns the part; called on the worker that has the block.
        arguments : iterable
            One argument for each block.
        join : callable
            Combines the list of parts, in the order of the blocks.
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
        """Return a result of :meth:`join_parts`.

        Parameters
        ----------
        key : str
            The key that :meth:`join_parts` returned.
        """
        (future,) = (future for future in self._futures if future.key == key)
        return future.result()


def fetch_key(key: str) -> Any:
    """Fetch data that is kept on the cluster; for use in a trial.

    Parameters
    ----------
    key : str
        The key of the data in Dask. If the data is being recomputed, the call waits for it.
    """
    client = get_client()
    # The scheduler reports the state of a future only to clients that have requested it. Submitting
    # a task requests its inputs.
    return client.submit(_identity, Future(key, client), pure=False).result()


def _identity(value: Any) -> Any:
    return value


@contextmanager
def persisted_partitions(
    client: Any, X: Any, y: Any, make: Make, more: Mapping[str, Any], is_per_sample: IsPerSample
) -> Iterator[PersistedPartitions]:
    """Compute the blocks of a data set on a cluster, and keep them there.

    Parameters
    ----------
    client : object
        The Dask cluster, as for :class:`~dasktune.Tuner`.
    X : Dask array, data frame or delayed object
        The samples. They are split into the blocks of X along the first axis, and rechunked to one
        block along the other axes.
    y : Dask array, data frame or series, delayed object, array-like, or None
        The targets, which are split as X is. They may be a delayed object if X is one.
    make : callable
        ``make(X, y, names, *values)`` returns a block; called on a worker that has its parts.
    more : mapping
        Further values, by name. Values with one entry for each sample are split as X is. The other
        values become ``others``, which belong to the whole data set.
    is_per_sample : callable
        ``is_per_sample(value, size)`` returns whether a value in memory has one entry per sample.

    Raises
    ------
    ConfigError
        If y cannot be split as X is.
    """
    with seceded(), connect(client) as connection:
        connected = connection.client
        parts = connected.compute(to_partitions(X))
        sizes = connected.gather(connected.map(length, parts, pure=False))
        splitter = _Splitter(X, sizes, connected.compute)
        targets, columns, others = splitter.split(y, more, is_per_sample)
        blocks = [
            connected.submit(make, part, target, tuple(columns), *values, pure=False)
            for part, target, *values in zip(parts, targets, *columns.values(), strict=True)
        ]
        # The blocks contain the data of their parts, so the futures of the parts can be released.
        del parts, targets, columns
        yield PersistedPartitions(connected, blocks, others)


def local_partitions(
    X: Any, y: Any, make: Make, more: Mapping[str, Any], is_per_sample: IsPerSample
) -> tuple[list[Any], dict[str, Any]]:
    """Return the blocks of a data set, computed without a cluster, and its ``others``.

    Parameters
    ----------
    X, y, make, more, is_per_sample
        As for :func:`persisted_partitions`.
    """
    parts = compute(None, to_partitions(X))
    splitter = _Splitter(X, [length(part) for part in parts], partial(compute, None))
    targets, columns, others = splitter.split(y, more, is_per_sample)
    blocks = [
        make(part, target, tuple(columns), *values)
        for part, target, *values in zip(parts, targets, *columns.values(), strict=True)
    ]
    return blocks, others


class _Splitter:
    """Splits values as X is split."""

    def __init__(self, X: Any, sizes: Sequence[int], compute: Callable[[Any], Any]) -> None:
        self._X = X
        self._sizes = sizes
        self._compute = compute

    def split(
        self, y: Any, more: Mapping[str, Any], is_per_sample: IsPerSample
    ) -> tuple[Sequence[Any], dict[str, Sequence[Any]], dict[str, Any]]:
        """Return the parts of y, the parts of values per sample, and the values not split."""
        size = sum(self._sizes)
        targets = [None] * len(self._sizes) if y is None else self._parts("y", y)
        columns, others = {}, {}
        for name, value in more.items():
            check_value = _is_per_sample if is_dask_collection(value) else is_per_sample
            if check_value(value, size):
                columns[name] = self._parts(name, value)
            else:
                others[name] = value
        return targets, columns, others

    def _parts(self, name: str, value: Any) -> Sequence[Any]:
        if not is_dask_collection(value):
            return _slices(name, value, self._sizes)
        parts: Sequence[Any] = self._compute(_split_like(value, self._X))
        own, wanted = len(parts), len(self._sizes)
        hint = "Rechunk or repartition it."
        check(own == wanted, name, f"split into {wanted} blocks, as X is", f"{own} blocks", hint)
        return parts


def _is_per_sample(value: Any, size: int) -> bool:
    """Whether a collection has a value for each sample."""
    if not is_collection(value):
        return False
    # The length of a Dask data frame is unknown. Assume that each row is one sample.
    lengths = value.chunks[0] if hasattr(value, "rechunk") and value.ndim else (np.nan,)
    return bool(np.isnan(sum(lengths)) or sum(lengths) == size)


def length(part: Any) -> int:
    """Return the number of rows, also of a sparse matrix, which has no ``len``.

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


def to_partitions(collection: Any) -> list[Any]:
    """Return the delayed blocks of a collection along its first axis.

    Parameters
    ----------
    collection : Dask array, data frame or delayed object
        The collection. A delayed object is one block.

    Examples
    --------
    >>> import dask.array
    >>> len(to_partitions(dask.array.ones((4, 2), chunks=(2, 1))))
    2
    """
    if is_delayed(collection):
        return [collection]
    if hasattr(collection, "rechunk") and any(n > 1 for n in collection.numblocks[1:]):
        collection = collection.rechunk(dict.fromkeys(range(1, collection.ndim), -1))
    blocks = collection.to_delayed()
    return list(blocks.ravel()) if hasattr(blocks, "ravel") else list(blocks)


def _split_like(y: Any, X: Any) -> list[Any]:
    if is_delayed(y):
        return [y]
    both = hasattr(y, "rechunk") and hasattr(X, "rechunk")
    # An unknown length is NaN, which is not equal to itself.
    if both and X.chunks[0] != y.chunks[0] and sum(X.chunks[0]) == sum(y.chunks[0]):
        y = y.rechunk({0: X.chunks[0]})
    return to_partitions(y)


def _slices(name: str, value: Any, sizes: Sequence[int]) -> list[Any]:
    own, wanted = length(value), sum(sizes)
    check(own == wanted, name, f"as long as X ({wanted} samples)", f"{own} samples")
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    rows = value.iloc if hasattr(value, "iloc") else value
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def partition_count(collection: Any) -> int:
    """Return the number of blocks of a collection along its first axis.

    Parameters
    ----------
    collection : Dask array or data frame
        The collection.

    Examples
    --------
    >>> import dask.array
    >>> partition_count(dask.array.ones((4, 2), chunks=(2, 1)))
    2
    """
    return int(collection.numblocks[0] if hasattr(collection, "numblocks") else collection.npartitions)
