"""By which way `TuneSearchCV` trains estimators step by step, and what comes of it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import dasktune as tune
from dasktune.errors import ConfigError
from dasktune.sklearn import TuneSearchCV
from dasktune.sklearn.steps.candidate_space import estimator_variants
from dasktune.sklearn.steps.training_modes import choose_mode

X, y = load_iris(return_X_y=True)
TWO = y < 2


def search(estimator, space, **options):
    defaults = {"n_iter": 2, "cv": 2, "max_iters": 2, "random_state": 0}
    return TuneSearchCV(estimator, space, **{**defaults, **options})


def sgd(**params):
    return SGDClassifier(random_state=0, **params)


# What parameters forbid


@pytest.mark.parametrize(
    ("model", "space", "budget"),
    [
        (sgd(early_stopping=True), {"alpha": [1e-4, 1e-3]}, "max_iter"),
        (sgd(class_weight="balanced"), {"alpha": [1e-4, 1e-3]}, "max_iter"),
        (sgd(class_weight={0: 2.0}), {"alpha": [1e-4, 1e-3]}, "partial_fit"),
        (sgd(), {"class_weight": [None, "balanced"]}, "max_iter"),
        (sgd(), {"early_stopping": tune.choice([False, True])}, "max_iter"),
        (sgd(), [{"alpha": [1e-4]}, {"early_stopping": [True]}], "max_iter"),
        (MLPClassifier((3,), early_stopping=True), {"alpha": [1e-4, 1e-3]}, "max_iter"),
        (MLPClassifier((3,)), {"solver": ["adam", "lbfgs"]}, "max_iter"),
        (
            make_pipeline(StandardScaler(), sgd()),
            {"sgdclassifier__class_weight": ["balanced", None]},
            "max_iter",
        ),
        (
            make_pipeline(StandardScaler(), sgd()),
            {"sgdclassifier": [sgd(), LogisticRegression()]},
            "max_iter",
        ),
        (
            make_pipeline(StandardScaler(), sgd()),
            {"sgdclassifier": [sgd(), SVC()]},
            "folds",
        ),
        (
            make_pipeline(StandardScaler(), GaussianNB()),
            {"gaussiannb": [sgd()], "gaussiannb__early_stopping": [False, True]},
            "folds",
        ),
        (
            BaggingClassifier(GaussianNB(), oob_score=True, random_state=0),
            {"max_samples": [0.5, 1.0]},
            "folds",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Some inputs do not have OOB scores")
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_a_way_that_parameters_forbid_is_not_taken(model, space, budget):
    found = search(model, space).fit(X, y)
    assert found.budget_ == budget
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


def test_the_best_is_fitted_by_the_way_that_all_were_scored_by():
    # The best one itself could be trained by partial_fit.
    space = {"class_weight": ["balanced", None], "alpha": [1e-3]}
    found = search(sgd(), space, refit=lambda results: 1).fit(X, y)
    assert found.best_params_["class_weight"] is None
    assert found.best_estimator_.max_iter == found.best_iteration_ == 2


@pytest.mark.parametrize(
    ("model", "space", "budget"),
    [
        (sgd(early_stopping=True), {"alpha": [1e-3]}, "partial_fit"),
        (sgd(), {"class_weight": [None, "balanced"]}, "partial_fit"),
        (LogisticRegression(solver="liblinear"), {"C": [1.0]}, "max_iter"),
        (LogisticRegression(), {"solver": ["lbfgs", "liblinear"]}, "max_iter"),
    ],
)
def test_a_way_that_is_asked_for_and_forbidden_is_refused_before_anything_is_fitted(model, space, budget):
    with pytest.raises(ConfigError, match=f"support budget='{budget}' with all searched"):
        search(model, space, budget=budget).fit(X[TWO], y[TWO])


def test_the_parameters_of_other_libraries_are_their_own_affair():
    class Theirs(ClassifierMixin, BaseEstimator):
        def __init__(self, early_stopping=True):
            self.early_stopping = early_stopping

        def fit(self, X, y):
            return self

        def partial_fit(self, X, y):
            return self

    assert choose_mode(Theirs(), "auto", amount=1, max_steps=2).budget == "partial_fit"


def test_estimators_within_are_looked_at_too():
    inner = MultiOutputClassifier(sgd(early_stopping=True))
    assert choose_mode(inner, "auto", amount=1, max_steps=2) is None


@pytest.mark.parametrize("space", [{"C": [0.1, 1.0]}, {"solver": ["liblinear", "lbfgs"]}])
def test_liblinear_which_restarts_each_time_is_fitted_as_a_whole(space):
    model = LogisticRegression(solver="liblinear")
    found = search(model, space, max_iters=8).fit(X[TWO], y[TWO])
    assert found.budget_ == "folds"
    assert found.best_estimator_.max_iter == 100
    whole = cross_val_score(found.best_estimator_, X[TWO], y[TWO], cv=2)
    assert found.best_score_ == pytest.approx(whole.mean())


def test_values_that_do_not_fit_together_are_left_to_the_check_of_candidates():
    pipeline = make_pipeline(StandardScaler(), "passthrough")
    space = {"passthrough": [sgd()], "passthrough__loss": ["hinge", "log_loss"], "no": ["b"]}
    assert [one.steps[-1][1].loss for one in estimator_variants(pipeline, space)] == [
        "hinge",
        "hinge",
        "log_loss",
    ]
    assert estimator_variants(pipeline, {"passthrough__loss": ["hinge"]}) == []


# Samples


@pytest.mark.parametrize(("model", "target"), [(SVC, y), (SVR, y.astype(float))])
def test_a_kernel_that_was_computed_before_is_cut_on_both_sides(model, target):
    options = {
        "budget": "n_samples",
        "max_iters": 3,
        "cv": KFold(3, shuffle=True, random_state=0),
        "return_train_score": True,
    }
    space = {"C": [0.1, 1.0]}
    known = search(model(kernel="precomputed"), space, **options).fit(X @ X.T, target)
    direct = search(model(kernel="linear"), space, **options).fit(X, target)
    for name in ("mean_test_score", "mean_train_score"):
        np.testing.assert_allclose(known.cv_results_[name], direct.cv_results_[name], atol=1e-4)
    steps = [[row["score"] for row in one.results_[0].history] for one in (known, direct)]
    assert np.isfinite(steps).all()
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-4)


class Seen(ClassifierMixin, BaseEstimator):
    """Notes what it is fitted on."""

    def __init__(self, log=None):
        self.log = log

    def fit(self, X, y):
        Seen.fits.append((X[:, 0].tolist(), list(y)))
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.array(["common"] * len(X))


def test_samples_are_only_added_and_each_class_is_there_by_its_share():
    Seen.fits = []
    labels = np.array(["common"] * 90 + ["rare"] * 10)
    rows = np.arange(100.0)[:, np.newaxis]
    splits = [(np.arange(100) < 100, [0, 99])]
    options = {"cv": splits, "max_iters": 50, "checkpoint_frequency": 0, "refit": False}
    search(Seen(), {"log": [None]}, n_iter=1, budget="n_samples", **options).fit(rows, labels)
    assert [len(kinds) for _, kinds in Seen.fits] == [max(10, 2 * step) for step in range(1, 51)]
    for (fewer, _), (more, kinds) in zip(Seen.fits, Seen.fits[1:], strict=False):
        assert set(fewer) <= set(more)
        assert abs(kinds.count("rare") - len(kinds) / 10) <= 2
        assert kinds.count("rare") >= 2


def test_the_first_of_many_steps_has_enough_samples_for_a_classifier():
    model = KNeighborsClassifier()
    cv = StratifiedKFold(2, shuffle=True, random_state=0)
    options = {"n_iter": 1, "max_iters": 40, "cv": cv, "checkpoint_frequency": 0}
    found = search(model, {"p": [1, 2]}, budget="n_samples", **options).fit(X, y)
    first = found.results_[0].history[0]["score"]
    assert first > 0.6
    whole = cross_val_score(KNeighborsClassifier(**found.best_params_), X, y, cv=cv)
    assert found.best_score_ == pytest.approx(whole.mean())


def test_targets_with_columns_are_drawn_as_they_come():
    targets = np.column_stack([y, y])
    model = KNeighborsClassifier(n_neighbors=3)

    def right(estimator, X, y):
        return float((estimator.predict(X) == y).mean())

    found = search(model, {"p": [1, 2]}, budget="n_samples", cv=KFold(2, shuffle=True), scoring=right).fit(
        X, targets
    )
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


# Splits that fail


class Picky(ClassifierMixin, BaseEstimator):
    """Fails on what begins with a certain sample, at a certain step."""

    def __init__(self, at=1, gain=1.0):
        self.at = at
        self.gain = gain

    def fit(self, X, y):
        return self

    def partial_fit(self, X, y, classes=None):
        self.calls_ = getattr(self, "calls_", 0) + 1
        Picky.calls += 1
        if X[0, 0] > 0 and self.calls_ == self.at:
            raise ZeroDivisionError("mine")
        self.classes_ = classes
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def score(self, X, y):
        return self.gain * self.calls_


ROWS = np.arange(6.0)[:, np.newaxis]
KINDS = np.array([0, 1] * 3)


@pytest.mark.parametrize("at", [1, 2])
def test_a_split_that_fails_leaves_the_others_as_they_are(at):
    Picky.calls = 0
    splits = KFold(3)
    options = {"cv": splits, "max_iters": 3, "error_score": 0.0, "refit": False}
    with pytest.warns(FitFailedWarning, match="2 fits failed out of a total of 6") as caught:
        found = search(Picky(at), {"gain": [1.0, 2.0]}, **options).fit(ROWS, KINDS)
    assert "ZeroDivisionError: mine" in str(caught[0].message)
    results = found.cv_results_
    gains = results["param_gain"].data.astype(float)
    np.testing.assert_array_equal(results["split0_test_score"], [0.0, 0.0])
    np.testing.assert_array_equal(results["split1_test_score"], 3 * gains)
    np.testing.assert_array_equal(results["split2_test_score"], 3 * gains)
    np.testing.assert_array_equal(results["mean_test_score"], 2 * gains)
    assert list(results["training_iteration"]) == [3, 3]
    # The split that has failed has no next step.
    assert Picky.calls == 2 * (3 + 3 + at)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_a_split_that_fails_with_no_number_as_its_score_ranks_its_candidate_last():
    Picky.calls = 0
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 6"):
        found = search(
            Picky(at=9),
            [{"at": [2], "gain": [9.0]}, {"gain": [1.0]}],
            cv=KFold(3),
            max_iters=4,
            scheduler="asha",
            refit=False,
        ).fit(ROWS, KINDS)
    bad = [params.get("at") == 2 for params in found.cv_results_["params"]].index(True)
    assert found.cv_results_["split1_test_score"][bad] > 0
    assert np.isnan(found.cv_results_["mean_test_score"][bad])
    assert found.cv_results_["rank_test_score"][bad] == 2


def test_a_split_that_fails_counts_for_each_metric_of_a_function():
    Picky.calls = 0

    def scores(estimator, X, y):
        return {"a": 1.0, "b": estimator.score(X, y)}

    options = {"n_iter": 1, "cv": KFold(3), "scoring": scores, "error_score": 0.0}
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 3"):
        found = search(Picky(), {"gain": [3.0]}, refit="b", **options).fit(ROWS, KINDS)
    assert found.cv_results_["mean_test_b"] == [4.0]
    # A scheduler gets what the results say.
    assert found.results_[0].metrics["mean_test_b"] == 4.0


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_a_split_that_fails_is_tried_again_alone():
    Picky.calls = 0
    with pytest.warns(FitFailedWarning, match="1 fits failed out of a total of 3"):
        search(Picky(), {"gain": [1.0]}, n_iter=1, cv=KFold(3), max_failures=2, refit=False).fit(ROWS, KINDS)
    assert Picky.calls == 3 + 2 + 2


def test_what_is_no_number_is_no_score_of_a_failed_fit():
    Picky.calls = 0

    def odd(estimator, X, y):
        return "seven"

    with pytest.raises(ValueError, match="scoring must return a number"):
        search(Picky(at=0), {"gain": [1.0]}, n_iter=1, scoring=odd).fit(ROWS, KINDS)


# A search that is fitted again


def test_nothing_is_left_of_the_fit_before():
    pandas = pytest.importorskip("pandas")
    found = search(sgd(), {"alpha": [1e-4, 1e-3]}).fit(pandas.DataFrame(X, columns=list("abcd")), y)
    assert found.best_iteration_ == 2
    found.set_params(max_iters=1, refit=False).fit(X, y)
    gone = ("best_iteration_", "best_estimator_", "refit_time_", "feature_names_in_")
    assert [name for name in gone if hasattr(found, name)] == []
    assert found.budget_ == "folds"
    found.set_params(scoring=["accuracy", "f1_macro"]).fit(X, y)
    gone = ("best_index_", "best_params_", "best_score_")
    assert [name for name in gone if hasattr(found, name)] == []
