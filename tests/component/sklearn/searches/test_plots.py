"""Fitted searches draw what they have found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")
pytest.importorskip("bokeh")

from bokeh.embed import file_html
from bokeh.model import Model
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils import estimator_html_repr

from dasktune.sklearn import (
    GridSearchCV,
    HalvingRandomSearchCV,
    HyperbandSearchCV,
    TuneGridSearchCV,
    TuneSearchCV,
)

X, y = load_iris(return_X_y=True)
SPACE = {"alpha": np.logspace(-5, 0, 12), "penalty": ["l1", "l2"]}
MODEL = SGDClassifier(random_state=0)

SEARCHES = {
    "grid": GridSearchCV(MODEL, {"alpha": [1e-4, 1e-2, 1.0], "penalty": ["l1", "l2"]}, cv=2),
    "several": GridSearchCV(
        MODEL,
        {"alpha": [1e-4, 1e-2]},
        cv=2,
        scoring=["accuracy", "f1_macro"],
        refit="f1_macro",
    ),
    "halving": HalvingRandomSearchCV(MODEL, SPACE, cv=2, n_candidates=6, random_state=0),
    "hyperband": HyperbandSearchCV(MODEL, SPACE, max_iter=9, random_state=0),
    "tune grid": TuneGridSearchCV(MODEL, {"alpha": [1e-4, 1e-2, 1.0]}, cv=2, scheduler="asha", max_iters=4),
    "tune": TuneSearchCV(MODEL, SPACE, n_iter=6, cv=2, scheduler="asha", max_iters=4, random_state=0),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_that_is_fitted_shows_its_candidates(name):
    search = SEARCHES[name]
    with pytest.raises(NotFittedError):
        search.plot()
    search.fit(X, y)
    for kind in ("best_so_far", "learning_curves", "parallel_coordinates", "importance", "slice"):
        figure = search.plot(kind)
        assert isinstance(figure, Model)
        assert "<script" in file_html(figure)
    trials = search._to_plot()
    assert len(trials) == len({repr(params) for params in search.cv_results_["params"]}) or (
        name == "hyperband" and len(trials) == 17
    )
    if name not in ("halving", "hyperband"):
        # There the best is one of those that were left at the end, not of all.
        best = trials.get_best_result()
        numbers = [value for value in best.metrics.values() if isinstance(value, float)]
        assert pytest.approx(search.best_score_) in numbers
    steps = {len(trial.history) for trial in trials}
    assert (max(steps) > 1) == (name in ("halving", "hyperband", "tune", "tune grid"))
    assert search.best_estimator_.__class__.__name__ in estimator_html_repr(search)


def test_parameters_that_are_objects_are_shown_by_their_text():
    from sklearn.pipeline import Pipeline

    steps = Pipeline([("scale", StandardScaler()), ("model", MODEL)])
    search = GridSearchCV(steps, {"scale": [StandardScaler(), MinMaxScaler()]}, cv=2).fit(X, y)
    page = file_html(search.plot("parallel_coordinates"))
    assert "StandardScaler()" in page
    assert "MinMaxScaler()" in page
