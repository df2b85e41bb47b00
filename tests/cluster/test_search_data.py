"""What may be given as data to the searches of scikit-learn's kind, and who gets it."""

from __future__ import annotations

import os
import threading
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster


@pytest.fixture
def client(pair):
    pytest.importorskip("sklearn")
    with Client(pair) as client:
        yield client


def numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).round(3)
    return X, (X[:, 0] > 0).astype(int)


def as_lists():
    X, y = numbers()
    return X.tolist(), y.tolist()


def as_sparse():
    sparse = pytest.importorskip("scipy.sparse")
    X, y = numbers()
    return sparse.csr_matrix(X), y


def as_pandas():
    pd = pytest.importorskip("pandas")
    X, y = numbers()
    return pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(y, name="y")


def as_polars():
    pl = pytest.importorskip("polars")
    X, y = numbers()
    return pl.DataFrame(X, schema=["a", "b", "c"]), pl.Series("y", y)


def as_dask_array():
    da = pytest.importorskip("dask.array")
    X, y = numbers()
    return da.from_array(X, chunks=(15, 3)), da.from_array(y, chunks=15)


def as_dask_frame():
    dd = pytest.importorskip("dask.dataframe")
    return tuple(dd.from_pandas(one, npartitions=4) for one in as_pandas())


def as_delayed():
    import dask

    return tuple(dask.delayed(one) for one in as_pandas())


def as_delayed_lists():
    import dask

    return tuple(dask.delayed(one, traverse=False) for one in as_lists())


def as_delayed_sparse():
    import dask

    # Rows of this format cannot be indexed.
    X, y = as_sparse()
    return dask.delayed(X.tocoo()), y


IN_MEMORY = [as_lists, as_sparse, as_pandas, as_polars]
LAZY = [as_dask_array, as_dask_frame, as_delayed, as_delayed_lists, as_delayed_sparse]
QUICK = (as_lists, as_sparse, as_pandas, as_dask_array)


@pytest.mark.parametrize(
    "kind",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in (*IN_MEMORY, *LAZY)],
)
def test_all_kinds_of_data_lead_to_the_scores_that_they_have_without_a_cluster(client, kind):
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV as Theirs

    from dasktune.sklearn import GridSearchCV, IncrementalSearchCV, TuneSearchCV

    X, y = kind()
    model, space = SGDClassifier(random_state=0, max_iter=5, tol=None), {"alpha": [1e-4, 1e-1]}
    here = (X, y) if kind in IN_MEMORY else as_sparse() if kind is as_delayed_sparse else numbers()
    known = Theirs(model, space, cv=3).fit(*here).cv_results_["mean_test_score"]
    grid = GridSearchCV(model, space, cv=3, client=client).fit(X, y)
    np.testing.assert_array_equal(grid.cv_results_["mean_test_score"], known)
    tuned = TuneSearchCV(model, space, n_iter=2, max_iters=3, cv=3, client=client).fit(X, y)
    assert list(tuned.cv_results_["training_iteration"]) == [3, 3]
    assert tuned.best_score_ > 0.8
    blocks = IncrementalSearchCV(
        model, space, n_initial_parameters="grid", max_iter=3, random_state=0, client=client
    ).fit(X, y)
    assert list(blocks.cv_results_["partial_fit_calls"]) == [3, 3]
    if kind in (as_pandas, as_polars, as_dask_frame, as_delayed):
        for search in (grid, tuned, blocks):
            assert search.feature_names_in_.tolist() == ["a", "b", "c"]


def make_counter():
    """Return an estimator without arrays, and its score: the sum of the samples."""
    from sklearn.base import BaseEstimator

    class Counter(BaseEstimator):
        def __init__(self, number=0):
            self.number = number

        def fit(self, X, y=None):
            self.total_ = float(np.sum(X))
            return self

        def partial_fit(self, X, y=None):
            return self.fit(X)

        def predict(self, X):
            return np.asarray(X)[:, 0] + self.total_

        def score(self, X, y=None):
            return float(np.sum(X))

    return Counter()


def make_samples(place):
    """Return samples that note each process that copies them."""

    # Dask copies arrays without their pickle methods, so the samples are a list.
    class Samples(list):
        def __reduce__(self):
            return copied, (list(self),)

    def copied(rows):
        Path(place, str(os.getpid())).touch()
        return Samples(rows)

    return Samples(np.arange(40.0).reshape(20, 2).tolist())


@pytest.mark.parametrize("kind", ["GridSearchCV", "TuneSearchCV", "IncrementalSearchCV"])
def test_delayed_samples_stay_on_the_cluster(client, kind, tmp_path):
    import dask

    import dasktune.sklearn as searches

    X = dask.delayed(make_samples)(str(tmp_path))
    options = {
        "GridSearchCV": {"cv": 2},
        "TuneSearchCV": {"cv": 2, "n_iter": 2},
        "IncrementalSearchCV": {"n_initial_parameters": "grid", "max_iter": 2},
    }
    search = getattr(searches, kind)(make_counter(), {"number": [1, 2]}, client=client, **options[kind])
    search.fit(X, dask.delayed(np.zeros)(20))
    predicted, score = search.predict(X), search.score(X)
    assert os.listdir(tmp_path)
    assert str(os.getpid()) not in os.listdir(tmp_path)
    assert score == 780.0
    if kind != "IncrementalSearchCV":
        assert search.best_estimator_.total_ == 780.0
    np.testing.assert_array_equal(
        predicted.compute(), np.arange(0.0, 40.0, 2.0) + search.best_estimator_.total_
    )


@pytest.mark.slow
def test_samples_targets_and_groups_may_be_of_different_kinds(client):
    import dask
    import dask.array as da
    from sklearn.model_selection import GroupKFold
    from sklearn.svm import SVC

    from dasktune.sklearn import GridSearchCV

    data, target = numbers()
    expected = SVC(C=1).fit(data, target)
    kinds = [
        [one, da.from_array(one, chunks=20), dask.delayed(one)] for one in (data, target, np.arange(60) % 3)
    ]
    for X, y, groups in product(*kinds):
        search = GridSearchCV(SVC(), {"C": [1]}, cv=GroupKFold(n_splits=3), client=client)
        with pytest.raises(ValueError, match="parameter should not be None"):
            search.fit(X, y)
        search.fit(X, y, groups=groups)
        np.testing.assert_allclose(search.best_estimator_.support_vectors_, expected.support_vectors_)
    assert search.score(X, y) == expected.score(data, target)


def make_meeting(place):
    """Return an estimator whose fits wait until two processes have begun one."""
    from sklearn.base import BaseEstimator

    class Meeting(BaseEstimator):
        def __init__(self, number=0):
            self.number = number

        def fit(self, X, y=None):
            Path(place, str(os.getpid())).touch()
            deadline = time.monotonic() + 300
            while len(os.listdir(place)) < 2:
                assert time.monotonic() < deadline, "no second process came"
                time.sleep(0.05)
            self.total_ = float(X.sum())
            return self

        def score(self, X, y=None):
            return self.total_

    return Meeting()


@pytest.mark.slow
def test_a_worker_that_joins_later_gets_the_data_and_fits(tmp_path):
    pytest.importorskip("sklearn")
    from dasktune.sklearn import GridSearchCV

    X = np.arange(80.0).reshape(40, 2)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        search = GridSearchCV(
            make_meeting(str(tmp_path)), {"number": [1, 2, 3]}, cv=2, refit=False, client=client
        )
        fitting = threading.Thread(target=search.fit, args=(X,), daemon=True)
        fitting.start()
        deadline = time.monotonic() + 300
        while not os.listdir(tmp_path):
            assert time.monotonic() < deadline, "nothing was begun"
            time.sleep(0.05)
        cluster.scale(2)
        fitting.join(timeout=300)
    assert len(os.listdir(tmp_path)) == 2
    for number, half in enumerate((X[20:], X[:20])):
        assert set(search.cv_results_[f"split{number}_test_score"]) == {half.sum()}
