"""What a search was called with, so that it goes on with nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import joblib
import numpy as np

from dasktune.errors import check
from dasktune.sklearn.placed import PlacedSamples
from dasktune.storage.experiment_store import SPEC_FILE
from dasktune.storage.location import Storage

__all__ = ["check_arguments", "digest"]

_FILE: Final = "search.json"


def check_arguments(storage: Storage, arguments: Mapping[str, Any], *, goes_on: bool) -> None:
    """Note what a search is called with, or check that it is what it was begun with.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    arguments : mapping
        The arguments, by name.
    goes_on : bool
        Whether the search has begun before.

    Raises
    ------
    ConfigError
        If it goes on, and an argument is another one.
    """
    digests = {name: digest(value) for name, value in arguments.items()}
    if goes_on and storage.exists(_FILE):
        then = json.loads(storage.read_bytes(_FILE))
        for name, value in arguments.items():
            check(
                then.get(name) == digests[name],
                name,
                "what it was when the search began, with resume=True",
                value,
                "Give the same, or begin another search under another name. Splits are the same "
                "only if cv is given a random_state where it shuffles.",
            )
    elif not storage.exists(SPEC_FILE):
        storage.write_bytes(_FILE, json.dumps(digests).encode())


def digest(value: Any) -> str:
    """Return what is the same for equal arguments in any process.

    What has neither parameters nor contents that can be compared counts by its type alone.

    Parameters
    ----------
    value : object
        An argument of a search, or of its `fit`.

    Examples
    --------
    >>> from sklearn.svm import SVC
    >>> digest(SVC(C=1.0)) == digest(SVC()), digest(SVC(C=2.0)) == digest(SVC())
    (True, False)
    """
    return sha256(repr(_told(value)).encode()).hexdigest()[:16]


def _told(value: Any) -> Any:
    """Return something plain that tells what a value is."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return sorted((str(name), _told(one)) for name, one in value.items())
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, list | tuple):
        return "list", [_told(one) for one in value]
    if hasattr(value, "__dask_graph__"):
        # Nothing is computed for this.
        return kind, repr(getattr(value, "shape", None)), getattr(value, "npartitions", 1)
    if isinstance(value, PlacedSamples):
        return kind, value.shape, value.digests(joblib.hash)
    if hasattr(value, "shape"):
        return kind, joblib.hash(value)
    if hasattr(value, "get_params") and not isinstance(value, type):
        return kind, _told(value.get_params(deep=False))
    if hasattr(value, "rvs") and hasattr(value, "args"):
        # Of scipy.stats: the object itself holds the global generator of random numbers.
        return kind, value.dist.name, _told(value.args), _told(value.kwds)
    if callable(value):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", kind)
    text = repr(value)
    return kind, text if " at 0x" not in text else ""
