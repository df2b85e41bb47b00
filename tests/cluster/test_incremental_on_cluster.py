"""Incremental searches on real worker processes, with the blocks of Dask collections."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest
from distributed import Client


@pytest.fixture
def client(pair):
    pytest.importorskip("sklearn")
    with Client(pair) as client:
        yield client


def make_model(partial_fit=lambda model, X, y: None):
    """Return a model that scores its parameter, and calls a function before it is trained."""
    from sklearn.base import BaseEstimator

    class Model(BaseEstimator):
        def __init__(self, value=0.0):
            self.value = value

        def fit(self, X, y=None):
            return self

        def partial_fit(self, X, y=None, **more):
            partial_fit(self, X, y)
            self.rows_ = [*getattr(self, "rows_", []), tuple(np.asarray(X)[:, 0])]
            return self

        def score(self, X, y=None):
            self.scored_ = tuple(np.asarray(X)[:, 0])
            return self.value

    return Model()


def numbered(n=40):
    """Return samples that know their number, and their targets."""
    X = np.column_stack([np.arange(n, dtype=float), np.sin(np.arange(n))])
    return X, (X[:, 1] > 0).astype(int)


def blocks(n=40, chunk=10):
    da = pytest.importorskip("dask.array")
    X, y = numbered(n)
    return da.from_array(X, chunks=(chunk, 2)), da.from_array(y, chunks=chunk)


@pytest.mark.slow
@pytest.mark.parametrize("persisted", [False, True])
def test_each_call_sees_a_block_in_an_order_that_is_the_same_for_all_models(client, persisted):
    from dasktune.sklearn import IncrementalSearchCV

    X, y = blocks()
    if persisted:
        X, y = client.persist([X, y])
    search = IncrementalSearchCV(make_model(), {"value": [1.0, 2.0]}, n_initial_parameters="grid", max_iter=8)
    search.set_params(fits_per_score=7, random_state=3, client=client).fit(X, y)
    model = search.best_estimator_
    assert model.value == search.best_score_ == 2.0
    assert [len(rows) for rows in model.rows_] == [8] * 8
    # Twice through all blocks, and what is held out of them is in none.
    seen = {row for rows in model.rows_ for row in rows}
    assert seen | set(model.scored_) == set(range(40))
    assert not seen & set(model.scored_)
    order = [int(min(rows) // 10) for rows in model.rows_]
    assert sorted(order[:4]) == sorted(order[4:]) == [0, 1, 2, 3]


def test_predictions_for_dask_blocks_are_lazy_and_those_for_arrays_are_not(client):
    da = pytest.importorskip("dask.array")
    from sklearn.linear_model import SGDClassifier

    from dasktune.sklearn import InverseDecaySearchCV

    X, y = blocks()
    search = InverseDecaySearchCV(
        SGDClassifier(loss="log_loss", random_state=0),
        {"alpha": [1e-4, 1e-3, 1e-2]},
        n_initial_parameters=3,
        random_state=0,
        client=client,
    ).fit(X, y)
    here = X.compute()
    for method in ("predict", "predict_proba", "decision_function"):
        lazy, known = getattr(search, method)(X), getattr(search, method)(here)
        assert isinstance(lazy, da.Array)
        assert isinstance(known, np.ndarray)
        assert (lazy.shape, lazy.dtype) == (known.shape, known.dtype)
        np.testing.assert_allclose(lazy.compute(), known)
    assert search.score(X, y) == search.score(here, y.compute())


def test_data_frames_keep_the_names_of_their_columns(client):
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    from sklearn.linear_model import SGDClassifier

    from dasktune.sklearn import IncrementalSearchCV

    X, y = numbered()
    frame = dd.from_pandas(pd.DataFrame(X, columns=["number", "wave"]), npartitions=4)
    targets = dd.from_pandas(pd.Series(y), npartitions=4)
    search = IncrementalSearchCV(
        SGDClassifier(random_state=0), {"alpha": [1e-4]}, n_initial_parameters="grid", max_iter=2
    ).fit(frame, targets)
    assert search.feature_names_in_.tolist() == ["number", "wave"]
    predicted = search.predict(frame).compute()
    assert np.array_equal(predicted, search.predict(frame.compute()))


@pytest.mark.parametrize("weights", [np.copy, np.ndarray.tolist, "dask"])
def test_weights_are_cut_as_the_blocks_are(client, weights):
    da = pytest.importorskip("dask.array")
    from sklearn.base import BaseEstimator

    from dasktune.sklearn import IncrementalSearchCV

    class Weighed(BaseEstimator):
        def __init__(self, value=0.0):
            self.value = value

        def fit(self, X, y=None):
            return self

        def partial_fit(self, X, y=None, sample_weight=None, other=None):
            self.same_ = getattr(self, "same_", True) and np.array_equal(X[:, 0], sample_weight)
            self.other_ = other
            return self

        def score(self, X, y=None, sample_weight=None):
            return float(self.same_ and np.array_equal(X[:, 0], sample_weight))

    X, _ = numbered()
    given = da.from_array(X[:, 0], chunks=7) if weights == "dask" else weights(X[:, 0])
    for data in (X, da.from_array(X, chunks=(10, 2))):
        search = IncrementalSearchCV(
            Weighed(), {"value": [0]}, n_initial_parameters=1, max_iter=5, client=client
        ).fit(data, sample_weight=given, other=da.arange(3))
        assert search.best_score_ == 1.0
        assert search.best_estimator_.other_.tolist() == [0, 1, 2]


def test_score_of_collections_is_weighed(client):
    from sklearn.linear_model import SGDClassifier

    from dasktune.sklearn import IncrementalSearchCV

    X, y = numbered()
    search = IncrementalSearchCV(
        SGDClassifier(random_state=0), {"alpha": [1e-4]}, n_initial_parameters=1, random_state=0
    )
    search.set_params(max_iter=2, client=client).fit(X, y)
    weights = (search.predict(X) != y).astype(float)
    weights[0] = 1.0
    known = search.score(X, y, sample_weight=weights)
    assert search.score(*blocks(), sample_weight=weights) == known != search.score(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_the_configuration_and_the_warning_filters_go_along_with_the_models(client, kind):
    import warnings

    import sklearn
    from sklearn.base import BaseEstimator

    from dasktune.sklearn import HyperbandSearchCV

    class Looking(BaseEstimator):
        def __init__(self, value=0.0):
            self.value = value

        def fit(self, X, y=None):
            return self

        def partial_fit(self, X, y=None):
            assert sklearn.get_config()["assume_finite"]
            warnings.warn("as an error", RuntimeWarning, stacklevel=1)
            return self

        def score(self, X, y=None):
            assert sklearn.get_config()["assume_finite"]
            try:
                warnings.warn("as an error", RuntimeWarning, stacklevel=1)
            except RuntimeWarning:
                return 1.0
            return 0.0

    data = numbered() if kind == "numpy" else blocks()
    space = {"value": np.linspace(0, 1, 20)}
    search = HyperbandSearchCV(
        Looking(), space, max_iter=3, error_score="raise", client=client, random_state=0
    )
    with sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="as an error"):
            search.fit(*data)
        warnings.simplefilter("ignore", RuntimeWarning)
        assert search.fit(*data).best_score_ == 0.0
    # Nothing of it stays on the workers.
    assert not any(client.run(lambda: sklearn.get_config()["assume_finite"]).values())


def test_metadata_routing_reaches_the_workers(client):
    import sklearn
    from sklearn.linear_model import SGDClassifier
    from sklearn.metrics import make_scorer

    from dasktune.sklearn import IncrementalSearchCV

    def total(y, predicted, *, sample_weight=None):
        return float(np.sum(sample_weight))

    with sklearn.config_context(enable_metadata_routing=True):
        search = IncrementalSearchCV(
            SGDClassifier(random_state=0),
            {"alpha": [1e-4]},
            n_initial_parameters=1,
            max_iter=2,
            scoring=make_scorer(total).set_score_request(sample_weight="importance"),
            client=client,
        ).fit(*blocks(), importance=np.full(40, 0.5))
        # Two of ten in each block.
        assert search.best_score_ == 8 * 0.5
        assert search.score(*blocks(), importance=np.ones(40)) == 40


@pytest.mark.slow
def test_hyperbands_brackets_make_as_many_calls_as_that_of_dask_ml(client):
    from dasktune.sklearn import HyperbandSearchCV

    X, y = numbered()
    space = {"value": np.linspace(0, 1, 100)}
    search = HyperbandSearchCV(make_model(), space, max_iter=9, random_state=0).fit(X, y)
    calls = [records[-1]["partial_fit_calls"] for records in search.model_history_.values()]
    assert (len(calls), sum(calls)) == (17, 69)
    assert search.metadata == search.metadata_


def test_a_lost_worker_costs_a_model_what_came_after_its_last_score(client, tmp_path):
    from dasktune.sklearn import IncrementalSearchCV

    def note(model, X, y):
        calls = len(getattr(model, "rows_", []))
        with (tmp_path / f"{model.value}").open("a") as file:
            file.write(f"{calls}\n")
        killed = tmp_path / "killed"
        if calls == 5 and model.value == 1.0 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    X, y = blocks()
    search = IncrementalSearchCV(
        make_model(note), {"value": [1.0, 2.0]}, n_initial_parameters="grid", max_iter=7
    )
    search.set_params(fits_per_score=3, client=client).fit(X, y)
    assert search.cv_results_["partial_fit_calls"].tolist() == [7, 7]
    # It had been scored after four calls.
    begun = [int(line) for line in (tmp_path / "1.0").read_text().split()]
    assert begun[:6] == [0, 1, 2, 3, 4, 5]
    assert begun[6:] == [4, 5, 6]


@pytest.mark.slow
def test_on_the_loop_of_an_asynchronous_client_fit_is_awaited(pair):
    pytest.importorskip("sklearn")
    from sklearn.svm import SVC

    from dasktune.sklearn import GridSearchCV, HalvingGridSearchCV, IncrementalSearchCV

    X, y = numbered()

    async def fit_all():
        async with Client(pair.scheduler_address, asynchronous=True):
            grid = await GridSearchCV(SVC(), {"C": [1.0, 2.0]}, cv=2).fit(X, y)
            again = await GridSearchCV(SVC(), {"C": [1.0, 2.0]}, cv=2).fit(*blocks())
            assert again.best_score_ == grid.best_score_
            halving = HalvingGridSearchCV(SVC(), {"C": [1.0, 2.0]}, cv=2, min_resources=20)
            search = IncrementalSearchCV(
                make_model(), {"value": [1.0]}, n_initial_parameters="grid", max_iter=2
            )
            return grid, await halving.fit(X, y), await search.fit(*blocks())

    grid, halving, search = asyncio.run(fit_all())
    assert grid.best_params_["C"] in (1.0, 2.0)
    assert halving.best_params_["C"] in (1.0, 2.0)
    assert search.best_score_ == 1.0


@pytest.mark.parametrize("is_default", [pytest.param(True, marks=pytest.mark.slow), False])
def test_on_the_loop_of_an_asynchronous_client_the_score_of_blocks_is_awaited(pair, is_default):
    from dasktune.sklearn import IncrementalSearchCV

    X, y = numbered()

    async def score_all():
        async with Client(pair.scheduler_address, asynchronous=True, set_as_default=is_default) as client:
            search = IncrementalSearchCV(
                make_model(),
                {"value": [1.0]},
                n_initial_parameters="grid",
                max_iter=2,
                client=None if is_default else client,
            )
            await search.fit(*blocks())
            return search.score(X, y), await search.score(*blocks())

    assert asyncio.run(score_all()) == (1.0, 1.0)


def test_futures_stand_for_what_they_hold(client):
    from dasktune.sklearn import IncrementalSearchCV

    X, y = numbered()
    model = client.scatter(make_model())
    search = IncrementalSearchCV(model, {"value": [1.0]}, n_initial_parameters="grid", max_iter=2)
    assert search.fit(X, y, classes=client.submit(np.unique, y)).best_score_ == 1.0
