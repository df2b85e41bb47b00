"""What may be given as data to the searches of scikit-learn's kind, and who gets it."""

from __future__ import annotations

import os
import threading
import time
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


KINDS = [as_lists, as_sparse, as_pandas, as_polars, as_dask_array, as_dask_frame]


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_data_lead_to_the_scores_that_they_have_without_a_cluster(client, kind):
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV as Theirs

    from dasktune.sklearn import GridSearchCV, IncrementalSearchCV, TuneSearchCV

    X, y = kind()
    model, space = SGDClassifier(random_state=0, max_iter=5, tol=None), {"alpha": [1e-4, 1e-1]}
    here = numbers() if hasattr(X, "__dask_graph__") else (X, y)
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
    if "a" in getattr(X, "columns", ()):
        for search in (grid, tuned, blocks):
            assert search.feature_names_in_.tolist() == ["a", "b", "c"]


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
                assert time.monotonic() < deadline, "nobody came"
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
