"""Collections of Dask in the searches that fit candidates as a whole: they stay on the workers."""

from __future__ import annotations

import os
import signal
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from distributed import Client

MB = 1_000_000


@pytest.fixture
def client(pair):
    pytest.importorskip("sklearn")
    with Client(pair) as client:
        yield client


def on_the_workers(rows=100_000, columns=50, chunk=10_000):
    """Return samples that no driver has ever had, and their targets."""
    da = pytest.importorskip("dask.array")
    X = da.random.default_rng(0).normal(size=(rows, columns), chunks=(chunk, columns))
    return X, (X[:, 0] > 0).astype(int)


def make_estimator(look=lambda X: 1.0, fit=lambda model, X: None):
    """Return an estimator whose score is what a function says of the samples that it is given."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Looking(ClassifierMixin, BaseEstimator):
        def __init__(self, number=0):
            self.number = number

        def fit(self, X, y=None, sample_weight=None):
            fit(self, X)
            self.score_ = look(X)
            self.pid_ = os.getpid()
            self.rows_ = len(X)
            self.weights_ = sample_weight
            return self

        def partial_fit(self, X, y=None, classes=None):
            return self.fit(X, y)

        def predict(self, X):
            return np.zeros(len(X))

        def score(self, X, y=None, sample_weight=None):
            return self.score_

    return Looking()


def make_counter(size):
    """Return a function that counts the copies of a whole in its process."""

    def copies(X):
        import gc

        # Arrays are known to the collector only by what refers to them.
        held = (held for one in gc.get_objects() for held in gc.get_referents(one))
        wholes = (one for one in held if isinstance(one, np.ndarray) and one.nbytes == size)
        return float(len({one.__array_interface__["data"][0] for one in wholes}))

    return copies


def searches(kind, estimator, client, **more):
    from dasktune import sklearn as ours

    options = {"cv": 2, "refit": False, "client": client, **more}
    space = {"number": [1, 2, 3]}
    if kind == "TuneSearchCV":
        options |= {"n_iter": 3, "max_iters": 2}
    if kind == "RandomizedSearchCV":
        options |= {"n_iter": 3}
    if kind == "HalvingGridSearchCV":
        options |= {"min_resources": 10_000, "random_state": 0}
    return getattr(ours, kind)(estimator, space, **options)


KINDS = ["GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "TuneSearchCV"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_driver_never_has_the_samples_and_each_worker_has_them_once(client, kind):
    X, y = on_the_workers()
    search = searches(kind, make_estimator(make_counter(X.nbytes)), client)
    # What is imported by the first search is none of its data.
    searches(kind, make_estimator(), client).fit(*on_the_workers(30_000, 2))
    tracemalloc.start()
    try:
        search.fit(X, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Indices, targets, pickles and messages take 9 MB, and on a busy machine once 17 MB.
    assert peak < X.nbytes / 2
    counts = [search.cv_results_[f"split{i}_test_score"] for i in (0, 1)]
    assert set(np.ravel(counts)) == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GridSearchCV", "HalvingGridSearchCV", "TuneSearchCV"])
def test_the_best_candidate_is_fitted_where_the_samples_are(client, kind):
    X, y = on_the_workers(40_000, 3)
    search = searches(kind, make_estimator(), client, refit=True)
    tracemalloc.start()
    try:
        search.fit(X, y, **({} if kind == "TuneSearchCV" else {"sample_weight": y}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    best = search.best_estimator_
    assert best.rows_ == 40_000
    assert best.pid_ != os.getpid()
    assert best.number == search.best_params_["number"]
    assert isinstance(best, type(search.estimator))
    assert search.refit_time_ >= 0
    assert search.predict(np.zeros((3, 3))).tolist() == [0, 0, 0]
    if kind != "TuneSearchCV":
        assert np.array_equal(best.weights_, y.compute())
    assert peak < 10 * MB


def test_the_scores_are_those_of_the_samples_in_memory(client):
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV as Theirs
    from sklearn.model_selection import StratifiedShuffleSplit

    from dasktune.sklearn import GridSearchCV

    X, y = on_the_workers(600, 4, 100)
    # Cut along both axes, and persisted by somebody else.
    X, y = client.persist([X.rechunk((100, 2)), y])
    model, space = SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-1]}
    cv = StratifiedShuffleSplit(3, random_state=0)
    ours = GridSearchCV(model, space, cv=cv, client=client).fit(X, y)
    theirs = Theirs(model, space, cv=cv).fit(X.compute(), y.compute())
    for split in range(3):
        key = f"split{split}_test_score"
        np.testing.assert_array_equal(ours.cv_results_[key], theirs.cv_results_[key])
    np.testing.assert_allclose(ours.best_estimator_.coef_, theirs.best_estimator_.coef_)


def test_a_data_frame_of_unknown_length_keeps_the_names_of_its_columns(client):
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    from sklearn.linear_model import SGDClassifier

    from dasktune.sklearn import GridSearchCV

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(90, 2)), columns=["a", "b"])
    frame["target"] = (frame.a > 0).astype(int)
    # A filter leaves divisions whose numbers of rows are unknown.
    table = dd.from_pandas(frame, npartitions=3)
    table = table[table.b > -1]
    search = GridSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-1]}, cv=3, client=client).fit(
        table[["a", "b"]], table["target"]
    )
    assert search.feature_names_in_.tolist() == ["a", "b"]
    here = frame[frame.b > -1]
    assert search.score(here[["a", "b"]], here["target"]) > 0.8


def test_a_splitter_that_looks_at_the_samples_gets_them(client):
    from dasktune.sklearn import GridSearchCV

    class ByFirst:
        def split(self, X, y=None, groups=None):
            low = np.flatnonzero(X[:, 0] < 0)
            high = np.flatnonzero(np.asarray(X)[:, 0] >= 0)
            yield low, high
            yield high, low

        def get_n_splits(self, X=None, y=None, groups=None):
            return 2

    X, y = on_the_workers(200, 3, 50)
    search = GridSearchCV(
        make_estimator(lambda X: float(X[:, 0].max())), {"number": [1]}, cv=ByFirst(), client=client
    ).fit(X, y)
    here = X.compute()[:, 0]
    assert search.cv_results_["split0_test_score"][0] == here[here < 0].max()
    assert search.cv_results_["split1_test_score"][0] == here.max()


def test_a_worker_that_dies_with_the_samples_costs_no_scores(client, tmp_path):
    from dasktune.sklearn import GridSearchCV

    mark = str(tmp_path / "has-died")

    def die_once(model, X):
        if model.number == 2:
            # Both of its fits may be at this point.
            with suppress(FileExistsError):
                os.mkdir(mark)
                os.kill(os.getpid(), signal.SIGKILL)

    X, y = on_the_workers(20_000, 10, 2_000)
    search = GridSearchCV(make_estimator(lambda X: float(X.sum()), die_once), {"number": [1, 2, 3]}, cv=2)
    search.set_params(client=client).fit(X, y)
    assert os.path.exists(mark)
    for split in (0, 1):
        assert len(set(search.cv_results_[f"split{split}_test_score"])) == 1
    assert search.best_estimator_.rows_ == 20_000


@pytest.mark.slow
def test_a_search_in_a_task_finds_samples_and_blocks_of_its_own_cluster(client):
    def search(kind):
        from sklearn.linear_model import SGDClassifier

        from dasktune import sklearn as ours

        X, y = on_the_workers(400, 3, 100)
        options = {"cv": 2} if kind == "GridSearchCV" else {"max_iter": 2, "random_state": 0}
        model = SGDClassifier(random_state=0)
        found = getattr(ours, kind)(model, {"alpha": np.logspace(-5, -1, 20)}, **options).fit(X, y)
        return found.best_score_

    for kind in ("GridSearchCV", "HyperbandSearchCV"):
        # As many as there are threads.
        scores = client.gather([client.submit(search, kind, pure=False) for _ in range(2)])
        assert min(scores) > 0.8


def test_a_search_resumes_only_with_the_same_samples(client, tmp_path):
    from dasktune.errors import ConfigError
    from dasktune.sklearn import TuneSearchCV

    X, y = on_the_workers(200, 3, 50)
    search = TuneSearchCV(make_estimator(), {"number": [1, 2]}, n_iter=2, cv=2, random_state=0)
    search.set_params(storage_path=tmp_path, name="mine", resume=True, client=client)
    search.fit(X, y)
    assert search.fit(X, y).n_trials_ == 2
    with pytest.raises(ConfigError, match="X must be the same as when the search began"):
        search.fit(X + 1, y)
