"""What a search was called with is known again in another process."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

import numpy as np
from scipy import stats
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.schedulers import ASHAScheduler
from dasktune.sklearn.fits.fingerprint import check_arguments, digest
from dasktune.storage.fs.storage import Storage

PAIRS = [
    (SVC(), SVC(C=2.0)),
    (make_pipeline(StandardScaler(), SVC()), make_pipeline(StandardScaler(), SVC(C=3.0))),
    (np.arange(5), np.arange(5)[::-1]),
    ({"a": stats.loguniform(1e-4, 1)}, {"a": stats.loguniform(1e-3, 1)}),
    ({"a": tune.uniform(0, 1)}, {"a": tune.uniform(0, 2)}),
    ([1, 2], [2, 1]),
    (np.float64(1.5), 1.25),
    (np.mean, np.median),
    ("asha", None),
    (ASHAScheduler(), "asha"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda pair: type(pair).__name__)
def test_what_differs_has_another_digest(one, other):
    assert digest(one) == digest(one) != digest(other)


def test_delayed_objects_have_the_digest_of_their_type():
    dask = pytest.importorskip("dask")
    # Their names are random, and their values are not known.
    assert digest(dask.delayed(np.zeros)(3)) == digest(dask.delayed(np.zeros)(3))


def test_another_argument_is_named_when_a_search_resumes(tmp_path):
    storage = Storage(str(tmp_path))
    check_arguments(storage, {"n_iter": 3, "cv": [1]}, resumes=False)
    check_arguments(storage, {"n_iter": 3, "cv": [1]}, resumes=True)
    with pytest.raises(ConfigError, match="n_iter must be the same as when the search began"):
        check_arguments(storage, {"n_iter": 4, "cv": [1]}, resumes=True)
