"""Dask collections as what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array
import numpy as np
from distributed import Future

from dasktune.cluster.connect import connect
from dasktune.cluster.here import has_cluster, leaving_the_pool

__all__ = ["by_block", "called_there", "computed", "is_collection", "resolved"]


def computed(client: Any, value: Any) -> Any:
    """Return a value with every Dask collection in it computed, all of them at once.

    Parameters
    ----------
    client : object
        What names the cluster that computes; without any, Dask's own scheduler in this process.
    value : object
        Tuples, lists and dicts are looked into.

    Examples
    --------
    >>> import dask.bag
    >>> computed(None, {"numbers": dask.bag.from_sequence([1, 2])})
    {'numbers': [1, 2]}
    """
    if client is None and not has_cluster():
        # Clients that were closed in another order than they were opened leave their name there.
        is_gone = dask.config.get("scheduler", None) in ("dask.distributed", "distributed")
        return dask.compute(value, scheduler="threads" if is_gone else None)[0]
    with leaving_the_pool(), connect(client) as connection:
        return dask.compute(value, scheduler=connection.client)[0]


def is_collection(value: Any) -> bool:
    """Whether a value is a Dask array, data frame or series, that has blocks.

    Parameters
    ----------
    value : object
        Anything.
    """
    return hasattr(value, "__dask_graph__") and hasattr(value, "to_delayed")


def by_block(function: Callable[[Any], Any], X: Any, meta: Any = None) -> Any:
    """Return what a function gives for each block of a collection, as a collection.

    Nothing is computed but, where `meta` does not tell it, what the function gives for one row of
    zeros.

    Parameters
    ----------
    function : callable
        ``function(block)`` returns as many rows as the block has. It must be possible to pickle it.
    X : Dask array or data frame
        The collection. An array is in one block along each axis but the first.
    meta : array or data frame, optional
        An empty example of what the function gives.

    Returns
    -------
    Dask array, data frame or series
        An array where the function gives arrays.

    Examples
    --------
    >>> import dask.array
    >>> by_block(lambda block: block.sum(axis=1), dask.array.ones((4, 3), chunks=2)).compute()
    array([3., 3., 3., 3.])
    """
    if hasattr(X, "rechunk"):
        if any(n > 1 for n in X.numblocks[1:]):
            X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
        given = function(_zeros(X)) if meta is None else meta
        lengths = X.chunks[0]
        blocks = X.to_delayed().ravel()
    else:
        given = function(X._meta_nonempty) if meta is None else meta
        if hasattr(given, "iloc"):
            return X.map_partitions(_of_rows, function, given.iloc[:0], meta=given.iloc[:0])
        lengths = (np.nan,) * X.npartitions
        blocks = X.to_delayed()
    empty = given[:0]
    # The function once for all blocks: it may hold a large model.
    function = dask.delayed(function, pure=True)
    part = dask.delayed(_of_rows, pure=True)
    parts = [
        dask.array.from_delayed(
            part(block, function, empty), (length, *empty.shape[1:]), meta=empty
        )
        for block, length in zip(blocks, lengths, strict=True)
    ]
    return dask.array.concatenate(parts, allow_unknown_chunksizes=True)


def _zeros(X: Any) -> Any:
    """Return one row of the kind that the blocks of an array are of."""
    shape = (1, *X.shape[1:])
    kind = X._meta
    if hasattr(kind, "__array_function__"):
        return np.zeros(shape, dtype=X.dtype, like=kind)
    return type(kind)(shape, dtype=X.dtype)  # scipy's sparse matrices


def _of_rows(block: Any, function: Callable[[Any], Any], empty: Any) -> Any:
    # Few estimators take no rows at all.
    return function(block) if block.shape[0] else empty


def resolved(value: Any) -> Any:
    """Return what a future holds, or the value itself if it is none.

    Parameters
    ----------
    value : object
        Anything. Its client must not run on the loop of the calling thread.
    """
    return value.result() if isinstance(value, Future) else value


def called_there(client: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return what a function gives for whole collections, which come together on one worker.

    Parameters
    ----------
    client : object
        As for :func:`computed`.
    function : callable
        What is called.
    *arguments, **named : object
        With what; collections in them are computed first.

    Examples
    --------
    >>> called_there(None, np.sum, dask.array.ones((4,), chunks=2))
    np.float64(4.0)
    """
    return computed(client, dask.delayed(function)(*arguments, **named))
