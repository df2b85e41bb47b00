"""A secret of a configuration reaches the estimator of a search."""

from __future__ import annotations

from functools import partial

import pytest
from sklearn.base import BaseEstimator

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.sklearn import GridSearchCV, TuneSearchCV

VALUE = "correct horse battery staple"
VARIABLE = "DASKTUNE_TEST_PASSWORD"


class Login(BaseEstimator):
    """An estimator that can be fitted with the password only."""

    def __init__(self, password=None, shift=0):
        self.password = password
        self.shift = shift

    def fit(self, X, y=None):
        assert self.password == VALUE
        return self

    def score(self, X, y=None):
        return float(self.shift)


@pytest.mark.parametrize("kind", [GridSearchCV, partial(TuneSearchCV, n_iter=2, search_alg="random")])
def test_a_search_on_a_cluster_gives_the_value_to_the_estimator(pair, monkeypatch, kind):
    monkeypatch.setenv(VARIABLE, VALUE)
    space = {"shift": [1, 2], "password": [tune.secret(VARIABLE)]}
    search = kind(Login(), space, cv=2, error_score="raise", client=pair).fit([[0], [1], [2], [3]])
    assert search.best_estimator_.password == VALUE
    assert search.best_params_["password"] == tune.secret(VARIABLE)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ConfigError, match=r"must be a variable in the environment"):
        kind(Login(), space, cv=2, client=pair).fit([[0], [1], [2], [3]])
