"""What goes along with the data of incremental searches: weights of samples, and who gets them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

import sklearn
from sklearn.base import BaseEstimator
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import make_scorer

from dasktune.errors import ConfigError
from dasktune.sklearn import HyperbandSearchCV, IncrementalSearchCV


class Constant(BaseEstimator):
    """Scores its parameter `value`, from its first call."""

    def __init__(self, value=0.0):
        self.value = value

    def fit(self, X, y=None):
        return self

    def partial_fit(self, X, y=None, **more):
        return self

    def score(self, X, y=None):
        return self.value


def samples(n=40):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(n, 4))
    return X, (X[:, 0] > 0).astype(int)


class Weighed(Constant):
    """Scores 1 if all weights that it has seen are the samples themselves."""

    def partial_fit(self, X, y=None, sample_weight=None, other=None):
        self.kinds_ = {type(sample_weight), type(other)}
        self._look(X, sample_weight)
        return super().partial_fit(X, y)

    def score(self, X, y=None, sample_weight=None):
        self._look(X, sample_weight)
        return float(self.same_)

    def _look(self, X, weights):
        same = weights is not None and np.array_equal(np.asarray(X)[:, 0], weights)
        self.same_ = same and getattr(self, "same_", True)


def as_dask(values, chunk=10):
    da = pytest.importorskip("dask.array")
    return da.from_array(values, chunks=(chunk, *values.shape[1:]))


def as_delayed(values):
    return pytest.importorskip("dask").delayed(values)


DATA = [np.copy, np.ndarray.tolist, as_dask, as_delayed]


@pytest.mark.parametrize("weights", DATA, ids=lambda f: f.__name__)
@pytest.mark.parametrize("X", DATA, ids=lambda f: f.__name__)
def test_what_has_a_value_for_each_sample_is_divided_as_they_are(X, weights):
    data = np.arange(40.0).reshape(40, 1)
    search = IncrementalSearchCV(Weighed(), {"value": [0]}, n_initial_parameters=1, max_iter=6)
    search.fit(X(data), sample_weight=weights(data[:, 0]), other=3)
    assert search.best_score_ == 1.0
    assert int in search.best_estimator_.kinds_


def test_what_has_values_for_something_else_goes_to_the_models_as_it_is():
    class Looking(Constant):
        def partial_fit(self, X, y=None, **more):
            self.more_ = more
            return super().partial_fit(X, y)

    data = np.arange(40.0).reshape(40, 1)
    more = {"word": "w" * 40, "three": as_dask(np.arange(3)), "classes": as_dask(np.arange(40))}
    for X in (data, as_dask(data)):
        search = IncrementalSearchCV(Looking(), {"value": [0]}, n_initial_parameters=1, max_iter=2)
        found = search.fit(X, **more).best_estimator_.more_
        assert found["word"] == more["word"]
        for name, size in (("three", 3), ("classes", 40)):
            assert isinstance(found[name], np.ndarray)
            assert found[name].tolist() == list(range(size))


def test_a_scorer_that_takes_no_weights_is_warned_of():
    X, y = samples(40)
    search = IncrementalSearchCV(SGDClassifier(), {"alpha": [1e-3]}, n_initial_parameters=1)
    search.set_params(max_iter=2, scoring=lambda estimator, X, y: 0.5)
    with pytest.warns(UserWarning, match="does not support sample_weight"):
        search.fit(X, y, sample_weight=np.ones(40))


def test_weights_that_do_not_fit_the_blocks_are_refused():
    X = as_dask(np.arange(40.0).reshape(40, 1))
    search = IncrementalSearchCV(Weighed(), {"value": [0]}, n_initial_parameters=1, max_iter=2)
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    weights = dd.from_pandas(pd.Series(np.arange(40.0)), npartitions=3)
    with pytest.raises(ConfigError, match="sample_weight must be split into 4 blocks, as X is"):
        search.fit(X, sample_weight=weights)


@pytest.mark.parametrize("kind", [np.copy, as_dask], ids=["numpy", "dask"])
def test_score_weighs_the_samples_of_any_kind_of_data(kind):
    # What cannot be learned.
    X, y = samples(30)[0], np.arange(30) % 2
    search = IncrementalSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-3]})
    search.set_params(n_initial_parameters=1, max_iter=2, random_state=0).fit(X, y)
    wrong = search.predict(X) != y
    weights = np.zeros(30)
    weights[np.flatnonzero(wrong)[0]] = 1.0
    assert search.score(kind(X), kind(y), sample_weight=weights) == 0.0
    assert search.score(X, y, sample_weight=kind(weights)) == 0.0


# Metadata routing


@pytest.fixture
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("_routing")
@pytest.mark.parametrize("kind", [np.copy, as_dask], ids=["numpy", "dask"])
def test_with_routing_what_has_requested_weights_gets_them(kind):
    told = []

    def scored(y, predicted, *, sample_weight=None):
        told.append(sample_weight)
        return 1.0

    X, y = samples(40)
    y = np.arange(40) % 2
    scorer = make_scorer(scored).set_score_request(sample_weight="importance")
    model = SGDClassifier(random_state=0).set_partial_fit_request(sample_weight=True)
    search = IncrementalSearchCV(model, {"alpha": [1e-3]}, n_initial_parameters=1, max_iter=2)
    search.set_params(scoring=scorer, random_state=0)
    fit, score = np.arange(1.0, 41.0), np.arange(101.0, 141.0)
    search.fit(kind(X), kind(y), sample_weight=kind(fit), importance=kind(score))
    assert len(told[0]) == 8
    assert set(told[0]) <= set(score)
    assert search.score(X, y, importance=score) == 1.0
    assert told[-1] is score
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        search.set_params(estimator=SGDClassifier()).fit(X, y, sample_weight=fit)
    with pytest.raises(TypeError, match=r"unexpected argument.*weight"):
        search.fit(X, y, weight=fit)


@pytest.mark.usefixtures("_routing")
@pytest.mark.parametrize("kind", [IncrementalSearchCV, HyperbandSearchCV])
def test_what_fit_is_given_is_routed_to_partial_fit(kind):
    model = SGDClassifier().set_partial_fit_request(sample_weight=True)
    model.set_score_request(sample_weight=False)
    router = kind(model, {"alpha": [1e-3]}).get_metadata_routing()
    assert router.consumes("fit", {"sample_weight", "coef_init"}) == {"sample_weight"}
    X, y = samples(40)
    search = kind(model, {"alpha": np.logspace(-4, 0, 20)}, max_iter=3, random_state=0)
    assert search.fit(X, y, sample_weight=np.ones(40)).best_score_ > 0.5
