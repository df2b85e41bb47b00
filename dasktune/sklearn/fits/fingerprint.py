"""Digests of a search's arguments: a stored search resumes only with the same arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import joblib
import numpy as np

from dasktune.errors import check
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.sklearn.fits.backend import is_delayed
from dasktune.sklearn.fits.cluster_data import ClusterData
from dasktune.storage.experiment.experiment_store import SPEC_FILE
from dasktune.storage.fs.storage import Storage
from dasktune.storage.fs.unpickling import first_name

_FILE: Final = "search.json"


def check_arguments(storage: Storage, arguments: Mapping[str, Any], *, resumes: bool) -> None:
    """Store digests of a search's arguments, or compare them with those of the stored search.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    arguments : mapping
        The arguments, by name.
    resumes : bool
        Whether the search resumes a stored one.

    Raises
    ------
    ConfigError
        If the search resumes with another value of an argument.
    """
    digests = {name: digest(value) for name, value in arguments.items()}
    if resumes and storage.exists(_FILE):
        stored = json.loads(storage.read_bytes(_FILE))
        for name, value in arguments.items():
            check(
                stored.get(name) == digests[name],
                name,
                "the same as when the search began, with resume=True",
                value,
                "Give the same value, or start a new search under another name. A cv that shuffles "
                "gives the same splits only with a random_state.",
            )
    elif not storage.exists(SPEC_FILE):
        # Only for a new experiment: the arguments of an existing one without digests are unknown.
        storage.write_bytes(_FILE, json.dumps(digests).encode())


def digest(value: Any) -> str:
    """Return a digest that is the same for equal arguments in any process.

    If an object has no `get_params` and its `repr` contains its memory address, the digest depends
    on its type alone.

    Parameters
    ----------
    value : object
        An argument of a search, or of its ``fit``.

    Examples
    --------
    >>> from sklearn.svm import SVC
    >>> digest(SVC(C=1.0)) == digest(SVC()), digest(SVC(C=2.0)) == digest(SVC())
    (True, False)
    """
    return sha256(repr(_canonical(value)).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Return plain data that identifies a value."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return sorted((str(name), _canonical(one)) for name, one in value.items())
    kind = "{}.{}".format(*first_name(type(value)))
    if isinstance(value, list | tuple):
        return "list", [_canonical(one) for one in value]
    if hasattr(value, "__dask_graph__"):
        # Only metadata, because a digest of the contents would compute the collection.
        if is_delayed(value):
            return kind
        return kind, repr(getattr(value, "shape", None)), getattr(value, "npartitions", 1)
    if isinstance(value, ClusterData):
        return kind, value.shape, value.digests(joblib.hash)
    if hasattr(value, "shape"):
        return kind, joblib.hash(value)
    if hasattr(value, "get_params") and not isinstance(value, type):
        return kind, _canonical(value.get_params(deep=False))
    if hasattr(value, "rvs") and hasattr(value, "args"):
        # A frozen distribution of scipy.stats holds the global random generator, which changes.
        return kind, value.dist.name, _canonical(value.args), _canonical(value.kwds)
    if callable(value):
        module, name = first_name(value)
        return module, name or kind
    # The memory address of an object differs from process to process. Of a scheduler only the
    # class counts.
    text = "" if isinstance(value, TrialScheduler) else repr(value)
    return kind, text if " at 0x" not in text else ""
