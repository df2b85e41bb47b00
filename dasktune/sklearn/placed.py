"""Samples that stay on a cluster, and what a search needs of them here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from dasktune.sklearn.compat import Surroundings
from dasktune.sklearn.evaluation import Data
from dasktune.sklearn.predictions import is_collection
from dasktune.sklearn.site import in_memory
from dasktune.trainable.remote_object import RemoteObject

__all__ = ["PlacedSamples", "fitted_there", "placed"]


class PlacedSamples(RemoteObject):
    """Stands for samples on a cluster: tells how many there are, and most splitters ask no more.

    Whoever looks at the samples themselves gets them, and has them in this process then.

    Parameters
    ----------
    whole : dasktune.cluster.whole.PlacedWhole
        The samples.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._empty = whole.empty
        self._here: Any = None
        self.size = whole.size
        self.patience = whole.patience
        self.shape = (whole.length, *self._empty.shape[1:])

    def begin(self, client: Any, key: str, address: str) -> Any:
        """Have a worker join them."""
        return self._whole.begin(client, key, address)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function gives for them and further arguments, on a worker."""
        return self._whole.call(function, *arguments)

    def digests(self, digest: Callable[[Any], str]) -> list[str]:
        """Return what tells the contents of each block."""
        found: list[str] = self._whole.map(digest)
        return found

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, item: Any) -> Any:
        return self._fetched()[item]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._fetched(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # Only what such samples have: scikit-learn asks for much that no samples have.
        if name.startswith("_") or not hasattr(self._empty, name):
            raise AttributeError(name)
        return getattr(self._fetched(), name)

    def _fetched(self) -> Any:
        if self._here is None:
            self._here = self._whole.gather()
        return self._here


@contextmanager
def placed(
    client: Any, X: Any, y: Any, params: dict[str, Any], *, stays: bool
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield data as a search that fits candidates as a whole wants it.

    Parameters
    ----------
    client : object
        What names the cluster.
    X, y : object
        The data.
    params : dict
        What goes along with it.
    stays : bool
        Whether a collection X stays on the cluster. All else comes to this process.
    """
    if not (stays and is_collection(X) and hasattr(X, "shape")):
        yield in_memory(client, X, y, params)
        return
    from dasktune.cluster.whole import placed_whole

    with placed_whole(client, X, (y, params)) as (whole, (y, params)):
        yield PlacedSamples(whole), y, params


def fitted_there(
    X: Any,
    surroundings: Surroundings,
    fit: Callable[..., None],
    best: Any,
    y: Any,
    params: Mapping[str, Any],
) -> tuple[Any, float]:
    """Fit an estimator on a worker, and return it with the seconds that it took.

    Parameters
    ----------
    X : object
        The samples.
    surroundings : Surroundings
        Of the search.
    fit : callable
        ``fit(best, data, params)``.
    best : estimator
        Is fitted.
    y : object
        The targets; None if there are none.
    params : mapping
        For its `fit`.
    """
    begun = time.time()
    surroundings.call(fit, best, Data(X=X, y=y), params)
    return best, time.time() - begun
