"""Samples that stay on the cluster while a search splits and refits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dasktune.sklearn.compat import SklearnContext, indexable
from dasktune.sklearn.fits.backend import compute_collections, is_collection, is_delayed
from dasktune.sklearn.fits.fit_and_score import Data
from dasktune.trainable.data.shared_objects import RemoteObject

if TYPE_CHECKING:
    from dasktune.cluster.data.concatenated import PersistedCollection


class ClusterData(RemoteObject):
    """Proxy for samples on a cluster. Its length and shape are enough for most splitters.

    Access to the samples themselves, such as indexing, transfers all of them to this process.

    Parameters
    ----------
    collection : PersistedCollection
        The samples.
    """

    def __init__(self, collection: PersistedCollection) -> None:
        self._collection = collection
        self._meta = collection.empty
        self._gathered: Any = None
        self.size = collection.size
        self.rebuild_seconds = collection.rebuild_seconds
        # The value of a delayed object may be a list, which has no shape.
        self.shape = (collection.length, *getattr(self._meta, "shape", ())[1:])

    def begin(self, client: Any, key: str, address: str) -> Any:
        """Concatenate the samples on a worker, and return the future of the result's frames."""
        return self._collection.begin(client, key, address)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with the samples and further arguments on a worker."""
        return self._collection.call(function, *arguments)

    def digests(self, digest: Callable[[Any], str]) -> list[str]:
        """Return a digest of each block."""
        found: list[str] = self._collection.map(digest)
        return found

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, item: Any) -> Any:
        return self._gather()[item]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._gather(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # Only attributes of the samples' type: scikit-learn probes for many others by hasattr().
        if name.startswith("_") or not hasattr(self._meta, name):
            raise AttributeError(name)
        return getattr(self._gather(), name)

    def _gather(self) -> Any:
        if self._gathered is None:
            self._gathered = self._collection.gather()
        return self._gathered


@contextmanager
def prepared_data(
    client: Any, X: Any, y: Any, params: dict[str, Any], *, stays: bool
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield the data of a search, with a proxy in place of samples that stay on the cluster.

    Parameters
    ----------
    client : object
        The client, the cluster object or the address of the cluster.
    X, y : object
        The samples and their targets.
    params : dict
        The metadata.
    stays : bool
        Whether a collection or delayed object X stays on the cluster. All others are computed and
        transferred to this process.
    """
    if not (stays and (is_delayed(X) or (is_collection(X) and hasattr(X, "shape")))):
        yield compute_collections(client, X, y, params)
        return
    from dasktune.cluster.data.concatenated import persisted_collection

    if is_delayed(X):
        X = as_indexable(X)
    with persisted_collection(client, X, (y, params)) as (collection, (y, params)):
        yield ClusterData(collection), y, params


def as_indexable(X: Any) -> Any:
    """Return a delayed object whose value can be indexed, as scikit-learn converts sparse matrices.

    Parameters
    ----------
    X : delayed object
        Samples.
    """
    from dasktune.cluster.data.collections import map_blocks

    return map_blocks(_indexable, X)


def _indexable(X: Any) -> Any:
    return indexable(X)[0]


def fit_on_worker(
    X: Any,
    sklearn_context: SklearnContext,
    fit: Callable[..., None],
    best: Any,
    y: Any,
    params: Mapping[str, Any],
) -> tuple[Any, float]:
    """Fit an estimator on a worker, and return it with the seconds that the fit took.

    Parameters
    ----------
    X : object
        The samples.
    sklearn_context : SklearnContext
        The search's scikit-learn configuration and warning filters.
    fit : callable
        The function that fits the estimator: ``fit(best, data, params)``.
    best : estimator
        The unfitted estimator.
    y : object
        The targets; None if there are none.
    params : mapping
        Parameters of the estimator's ``fit``.
    """
    begun = time.time()
    sklearn_context.call(fit, best, Data(X=X, y=y), params)
    return best, time.time() - begun
