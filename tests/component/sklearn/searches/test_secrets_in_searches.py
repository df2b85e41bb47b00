"""A search in this process gives the value of a secret to the estimator alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.sklearn import (
    GridSearchCV,
    HalvingGridSearchCV,
    IncrementalSearchCV,
    RandomizedSearchCV,
    TuneSearchCV,
)

VALUE = "correct horse battery staple"
VARIABLE = "DASKTUNE_TEST_PASSWORD"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()

X = np.arange(24.0).reshape(12, 2)
y = np.arange(12) % 2


class Login(ClassifierMixin, BaseEstimator):
    """An estimator that needs a password to be fitted."""

    def __init__(self, password: Any = None, shift: float = 0.0) -> None:
        self.password = password
        self.shift = shift

    def fit(self, X: Any, y: Any) -> Any:
        return self.partial_fit(X, y, classes=np.unique(y))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Any:
        assert hashlib.sha256(self.password.encode()).hexdigest() == DIGEST
        self.classes_ = np.array([0, 1])
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X), dtype=int)


SPACE = {"shift": [0.0, 1.0], "password": [tune.secret(VARIABLE)]}

SEARCHES = {
    "grid": lambda: GridSearchCV(Login(), SPACE, cv=2, error_score="raise", verbose=4),
    "random": lambda: RandomizedSearchCV(Login(), SPACE, n_iter=2, cv=2, error_score="raise", verbose=4),
    "halving": lambda: HalvingGridSearchCV(
        Login(), SPACE, cv=2, min_resources=6, error_score="raise", verbose=4
    ),
    "tune": lambda: TuneSearchCV(Login(), SPACE, n_iter=2, cv=2, error_score="raise", verbose=4),
    "searcher": lambda: TuneSearchCV(
        Login(), SPACE, n_iter=2, cv=2, search_alg="random", error_score="raise", verbose=4
    ),
    "steps": lambda: TuneSearchCV(
        Login(), SPACE, n_iter=2, cv=2, max_iters=2, error_score="raise", verbose=4
    ),
    "incremental": lambda: IncrementalSearchCV(
        Login(), SPACE, n_initial_parameters=2, max_iter=2, error_score="raise", verbose=True
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_in_this_process_gives_the_value_to_the_estimator_and_to_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(VARIABLE, VALUE)
    search = SEARCHES[name]().fit(X, y)
    assert search.best_estimator_.password == VALUE
    assert search.best_params_["password"] == tune.secret(VARIABLE)
    assert VALUE not in repr(search.cv_results_) + repr(search)
    told = capsys.readouterr()
    assert VALUE not in told.out + told.err


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_without_its_secret_fits_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=rf"secret\('{VARIABLE}'\) must be a variable in the environment"):
        SEARCHES[name]().fit(X, y)


@pytest.mark.parametrize("search_alg", [None, "random"])
def test_a_stored_search_has_only_the_name(
    search_alg: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(VARIABLE, VALUE)
    options = {"n_iter": 2, "cv": 2, "storage_path": str(tmp_path), "name": "exp", "verbose": 4}
    TuneSearchCV(Login(), SPACE, search_alg=search_alg, **options).fit(X, y)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert [path for path in files if VALUE.encode() in path.read_bytes()] == []
