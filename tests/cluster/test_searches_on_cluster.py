"""Searches of `dasktune.sklearn` on real worker processes."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import suppress

import numpy as np
import pytest
from distributed import Client


@pytest.fixture
def client(pair):
    pytest.importorskip("sklearn")
    with Client(pair) as client:
        yield client


def iris():
    from sklearn.datasets import load_iris

    return load_iris(return_X_y=True)


def make_estimator(fit):
    """Return an estimator that calls a function before it is fitted."""
    from sklearn.svm import SVC

    class Watched(SVC):
        def fit(self, X, y, **weights):
            fit(self, X)
            return super().fit(X, y, **weights)

    return Watched()


def test_results_do_not_depend_on_which_fit_ends_first(client):
    from sklearn import model_selection
    from sklearn.svm import SVC

    from dasktune.sklearn import GridSearchCV

    X, y = iris()
    space = {"C": [0.01, 1.0, 100.0], "kernel": ["rbf", "linear"]}
    ours = GridSearchCV(SVC(), space, client=client).fit(X, y).cv_results_
    theirs = model_selection.GridSearchCV(SVC(), space).fit(X, y).cv_results_
    assert list(ours) == list(theirs)
    for key in theirs:
        if not key.endswith("_time"):
            np.testing.assert_array_equal(ours[key], theirs[key])


@pytest.mark.parametrize("kind", ["GridSearchCV", "TuneSearchCV"])
def test_the_data_is_on_each_worker_once_and_only_there(client, kind):
    from dasktune import sklearn as searches

    def count_copies(self, X):
        import gc

        # Arrays are known to the collector only by what refers to them.
        held = (held for one in gc.get_objects() for held in gc.get_referents(one))
        wholes = (one for one in held if isinstance(one, np.ndarray) and one.shape == (4000, 100))
        self.coef0 = float(len({one.__array_interface__["data"][0] for one in wholes}))

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 100)), np.arange(4000) % 2
    search = getattr(searches, kind)(
        make_estimator(count_copies),
        {"max_iter": [1, 2, 3]},
        **({"n_iter": 3} if kind == "TuneSearchCV" else {}),
        cv=2,
        refit=False,
        scoring=lambda estimator, X, y: estimator.coef0,
        client=client,
    )
    with warnings.catch_warnings():
        # Few iterations do not converge.
        warnings.simplefilter("ignore")
        search.fit(X, y)
    scores = np.array([search.cv_results_[f"split{i}_test_score"] for i in (0, 1)])
    assert (scores == 1.0).all()


def test_a_fit_whose_worker_dies_is_run_again(client, tmp_path):
    from dasktune.sklearn import GridSearchCV

    X, y = iris()
    mark = str(tmp_path / "has-died")

    def die_once(self, X):
        if self.C == 2.0:
            # Both of its fits may be at this point.
            with suppress(FileExistsError):
                os.mkdir(mark)
                os.kill(os.getpid(), signal.SIGKILL)

    search = GridSearchCV(make_estimator(die_once), {"C": [1.0, 2.0]}, cv=2, refit=False, client=client)
    search.fit(X, y)
    assert os.path.exists(mark)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.slow
def test_a_fit_that_kills_every_worker_gets_the_error_score(client):
    from sklearn.exceptions import FitFailedWarning

    from dasktune.sklearn import GridSearchCV

    X, y = iris()

    def die(self, X):
        if self.C == 2.0:
            os.kill(os.getpid(), signal.SIGKILL)

    search = GridSearchCV(
        make_estimator(die), {"C": [1.0, 2.0]}, cv=2, refit=False, error_score=-1.0, client=client
    )
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 4"):
        search.fit(X, y)
    assert search.cv_results_["mean_test_score"][0] > 0.8
    assert search.cv_results_["mean_test_score"][1] == -1.0


def test_the_exception_of_a_fit_keeps_its_type(client):
    from dasktune.sklearn import GridSearchCV

    def fail(self, X):
        raise ZeroDivisionError("mine")

    search = GridSearchCV(make_estimator(fail), {"C": [1.0]}, cv=2, error_score="raise", client=client)
    with pytest.raises(ZeroDivisionError, match="mine"):
        search.fit(*iris())


@pytest.mark.slow
def test_searches_may_be_nested_in_trials_and_in_tasks(client):
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    from dasktune.sklearn import GridSearchCV

    X, y = iris()

    def search(X, y):
        return GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=2).fit(X, y).best_params_

    # As many as there are threads, each of which waits for trials that need a thread's place.
    found = client.gather([client.submit(search, X, y, pure=False) for _ in range(2)])
    assert found == [{"C": 1.0}, {"C": 1.0}]
    inner = GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=2)
    outer = GridSearchCV(inner, {"cv": [2, 3]}, cv=2).fit(X, y)
    assert outer.best_estimator_.best_params_ == {"C": 1.0}
    assert cross_val_score(inner, X, y, cv=2).mean() > 0.8


def test_the_configuration_and_the_warning_filters_travel_along(client):
    import sklearn

    from dasktune.sklearn import GridSearchCV

    def look(self, X):
        assert sklearn.get_config()["assume_finite"]
        warnings.warn("as an error", RuntimeWarning, stacklevel=1)

    search = GridSearchCV(make_estimator(look), {"C": [1.0]}, cv=2, error_score="raise", client=client)
    with sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="as an error"):
            search.fit(*iris())


@pytest.mark.parametrize("kind", ["GridSearchCV", "RandomizedSearchCV", "TuneGridSearchCV", "TuneSearchCV"])
def test_what_fit_accepts_can_also_be_predicted_and_scored(client, kind):
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    from sklearn.linear_model import SGDClassifier

    import dasktune.sklearn as searches

    X, y = iris()
    frame = pd.DataFrame(X, columns=list("abcd")).assign(target=y).sample(frac=1, random_state=0)
    lazy = dd.from_pandas(frame.reset_index(drop=True), npartitions=3)
    columns = lazy[list("abcd")]
    options = {} if "Grid" in kind else {"n_iter": 2, "random_state": 0}
    search = getattr(searches, kind)(
        SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2]}, cv=2, client=client, **options
    )
    search.fit(columns, lazy["target"])
    predicted = search.predict(columns)
    assert predicted.npartitions == 3
    assert np.array_equal(predicted.compute(), search.predict(columns.compute()))
    assert search.score(columns, lazy["target"]) == search.score(columns.compute(), lazy["target"].compute())


def test_the_metric_of_refit_scores_dask_collections(client):
    da = pytest.importorskip("dask.array")
    from sklearn.linear_model import LogisticRegression

    from dasktune.sklearn import GridSearchCV

    X, y = iris()
    search = GridSearchCV(
        LogisticRegression(max_iter=1000),
        {"C": [1.0]},
        cv=2,
        scoring=["accuracy", "neg_log_loss"],
        refit="neg_log_loss",
        client=client,
    ).fit(X, y)
    lazy = da.from_array(X, chunks=(50, 4)), da.from_array(y, chunks=50)
    assert search.score(*lazy) == pytest.approx(search.score(X, y))
    assert search.score(*lazy) < 0.0
