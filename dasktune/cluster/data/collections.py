"""Functions that compute Dask collections, or apply a function to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array
import numpy as np
from dask.base import unpack_collections
from dask.delayed import Delayed
from distributed import Future

from dasktune.cluster.connection.connect import connect
from dasktune.cluster.connection.task_context import has_cluster, seceded


def compute(client: Any, value: Any) -> Any:
    """Return a value with every Dask collection in it computed, all at once.

    Parameters
    ----------
    client : object
        The Dask cluster that computes. Without a cluster, Dask's local scheduler computes.
    value : object
        Tuples, lists and dicts are searched for collections.

    Examples
    --------
    >>> import dask.bag
    >>> compute(None, {"numbers": dask.bag.from_sequence([1, 2])})
    {'numbers': [1, 2]}
    """
    collections, repack = unpack_collections(value)
    if not collections:
        return value
    parts = as_delayed(collections)
    if client is None and not has_cluster():
        # If clients are not closed in the reverse order of their opening, Dask's setting keeps the
        # name of the distributed scheduler. Without a client Dask would then raise.
        is_stale = dask.config.get("scheduler", None) in ("dask.distributed", "distributed")
        return repack(dask.compute(*parts, scheduler="threads" if is_stale else None))[0]
    with seceded(), connect(client) as connection:
        return repack(dask.compute(*parts, scheduler=connection.client))[0]


def as_delayed(collections: Sequence[Any]) -> list[Any]:
    """Return collections as delayed objects of their whole values.

    Dask 2026.8 computes collections of several kinds together, but returns the results in the wrong
    order if the kinds alternate, as in an array, a data frame and another array.

    Parameters
    ----------
    collections : sequence of Dask collections
        Arrays, data frames, delayed objects and so on.
    """
    return [dask.delayed(one) for one in collections]


def is_collection(value: Any) -> bool:
    """Whether a value is a Dask collection with blocks, such as an array, data frame or series.

    Parameters
    ----------
    value : object
        Any value.
    """
    # A delayed object has every attribute that its value may have.
    return hasattr(value, "__dask_graph__") and not is_delayed(value) and hasattr(value, "to_delayed")


def is_delayed(value: Any) -> bool:
    """Whether a value is a delayed object: one value of any type that Dask has yet to compute.

    Parameters
    ----------
    value : object
        Any value.

    Examples
    --------
    >>> is_delayed(dask.delayed(sum)([1, 2])), is_delayed(3)
    (True, False)
    """
    return isinstance(value, Delayed)


def map_blocks(function: Callable[[Any], Any], X: Any, meta: Any = None) -> Any:
    """Apply a function to each block of a collection, and return the results as a collection.

    For a delayed object the result is a delayed object, too. No block is computed. Without `meta`,
    the function is called once with an example block: one row of zeros for an array, Dask's example
    rows for a data frame.

    Parameters
    ----------
    function : callable
        ``function(block)`` returns as many rows as the block has. It must be picklable.
    X : Dask array, data frame or delayed object
        The collection. An array is rechunked to one block along each axis but the first.
    meta : array or data frame, optional
        An empty example of the function's result.

    Returns
    -------
    Dask array, data frame, series or delayed object
        An array if the function returns arrays.

    Examples
    --------
    >>> import dask.array
    >>> map_blocks(lambda block: block.sum(axis=1), dask.array.ones((4, 3), chunks=2)).compute()
    array([3., 3., 3., 3.])
    """
    if is_delayed(X):
        return dask.delayed(function, pure=True)(X)
    if hasattr(X, "rechunk"):
        if any(n > 1 for n in X.numblocks[1:]):
            X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
        example = function(_zeros(X)) if meta is None else meta
        lengths = X.chunks[0]
        blocks = X.to_delayed().ravel()
    else:
        example = function(X._meta_nonempty) if meta is None else meta
        if hasattr(example, "iloc"):
            empty = example.iloc[:0]
            return X.map_partitions(_apply_unless_empty, function, empty, meta=empty)
        lengths = (np.nan,) * X.npartitions
        blocks = X.to_delayed()
    empty = example[:0]
    # The function may contain a large model. As a separate task it is in the graph once, and not
    # once for each block.
    function = dask.delayed(function, pure=True)
    apply = dask.delayed(_apply_unless_empty, pure=True)
    parts = [
        dask.array.from_delayed(apply(block, function, empty), (length, *empty.shape[1:]), meta=empty)
        for block, length in zip(blocks, lengths, strict=True)
    ]
    return dask.array.concatenate(parts, allow_unknown_chunksizes=True)


def _zeros(X: Any) -> Any:
    """Return one row of zeros of the array's type."""
    shape = (1, *X.shape[1:])
    meta = X._meta
    if hasattr(meta, "__array_function__"):
        return np.zeros(shape, dtype=X.dtype, like=meta)
    return type(meta)(shape, dtype=X.dtype)  # scipy's sparse matrices


def _apply_unless_empty(block: Any, function: Callable[[Any], Any], empty: Any) -> Any:
    # Few estimators accept an input without rows.
    return function(block) if block.shape[0] else empty


def resolve(value: Any) -> Any:
    """Return a future's result, or the value itself if it is not a future.

    Parameters
    ----------
    value : object
        Any value. For a future, the calling thread must not run the event loop of the future's
        client, because it would wait for itself.
    """
    return value.result() if isinstance(value, Future) else value


def call_with_computed(client: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function on one worker with computed arguments, and return its result.

    Parameters
    ----------
    client : object
        As for :func:`compute`.
    function : callable
        The function.
    *arguments, **named : object
        The function's arguments. Collections in them are computed first.

    Examples
    --------
    >>> call_with_computed(None, np.sum, dask.array.ones((4,), chunks=2))
    np.float64(4.0)
    """
    return compute(client, dask.delayed(function)(*arguments, **named))
