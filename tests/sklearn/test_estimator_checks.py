"""scikit-learn's checks of what an estimator is."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("sklearn")

from sklearn import model_selection
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_checks

import dasktune.sklearn

generator = pytest.importorskip("sklearn.utils._test_common.instance_generator")

NAMES = ("GridSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV", "RandomizedSearchCV")


def instances():
    """Return our searches, set up as scikit-learn sets up its own for these checks."""
    for name in NAMES:
        for arguments in generator.INIT_PARAMS[getattr(model_selection, name)]:
            yield getattr(dasktune.sklearn, name)(**arguments)
    for arguments in generator.INIT_PARAMS[model_selection.RandomizedSearchCV]:
        yield dasktune.sklearn.TuneSearchCV(**arguments)
    for arguments in generator.INIT_PARAMS[model_selection.GridSearchCV]:
        yield dasktune.sklearn.TuneGridSearchCV(**arguments)
    yield from stepwise_searches()


def stepwise_searches():
    """Return searches that train step by step, by each way that scikit-learn's estimators allow."""
    more = {"cv": 2, "random_state": 0, "error_score": "raise", "max_iters": 2, "scheduler": "asha"}
    alphas = {"alpha": [1e-4, 1e-3]}
    for model, space in (
        (SGDClassifier(random_state=0), alphas),
        (SGDRegressor(random_state=0), alphas),
        (LogisticRegression(), {"C": [0.1, 1.0]}),
        (
            Pipeline([("pca", PCA()), ("sgd", SGDClassifier(random_state=0))]),
            {"sgd__alpha": [1e-4, 1e-3]},
        ),
        (GradientBoostingClassifier(random_state=0), {"max_depth": [1, 2]}),
    ):
        yield dasktune.sklearn.TuneSearchCV(model, space, n_iter=2, **more)
    yield dasktune.sklearn.TuneSearchCV(
        LogisticRegression(), {"C": [0.1, 1.0]}, n_iter=2, budget="n_samples", **more
    )


def known_failures(search):
    """Return what scikit-learn expects its own class to fail."""
    theirs = getattr(model_selection, type(search).__name__, model_selection.RandomizedSearchCV)
    return generator.PER_ESTIMATOR_XFAIL_CHECKS.get(theirs, {})


def parametrize_with_checks(estimators, **options):
    """Parametrize a test as scikit-learn does, but make the text of an estimator only once.

    scikit-learn makes it for each check, which took an eighth of the collection of all tests.
    """
    mark = estimator_checks.parametrize_with_checks(estimators, **options).mark
    ids = functools.cache(mark.kwargs["ids"])
    return pytest.mark.parametrize(*mark.args, **{**mark.kwargs, "ids": ids})


def first_of_each_class(searches):
    """Return the first search of each class."""
    firsts = {}
    for one in searches:
        firsts.setdefault(type(one), one)
    return list(firsts.values())


def without(searches, others):
    """Return the searches that are not among the others."""
    known = set(map(repr, others))
    return [one for one in searches if repr(one) not in known]


# The first ones are quick tests, and the first of each class are slow ones. All others check the
# same code with other estimators.
QUICK = [
    next(one for one in instances() if type(one).__name__ == "RandomizedSearchCV"),
    next(stepwise_searches()),
]
SLOW = without(first_of_each_class(instances()), QUICK)
EXHAUSTIVE = without(instances(), QUICK + SLOW)


# They warn of what their data is meant to provoke. Some of what scikit-learn expects to fail passes
# for its own searches, too.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(QUICK, expected_failed_checks=known_failures, xfail_strict=False)
def test_a_search_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(SLOW, expected_failed_checks=known_failures, xfail_strict=False)
def test_each_class_of_searches_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(EXHAUSTIVE, expected_failed_checks=known_failures, xfail_strict=False)
def test_searches_of_other_estimators_are_estimators(estimator, check):
    check(estimator)


def incremental_searches():
    """Return our incremental searches, as small as they can be."""
    space = {"alpha": [1e-4, 1e-3]}
    sizes = {
        "IncrementalSearchCV": {"n_initial_parameters": "grid", "max_iter": 2},
        "InverseDecaySearchCV": {"n_initial_parameters": "grid", "max_iter": 2},
        "SuccessiveHalvingSearchCV": {"n_initial_parameters": 2, "n_initial_iter": 1},
        "HyperbandSearchCV": {"max_iter": 2, "aggressiveness": 2},
    }
    for name, size in sizes.items():
        for model in (SGDClassifier(random_state=0), SGDRegressor(random_state=0)):
            yield getattr(dasktune.sklearn, name)(model, space, random_state=0, error_score="raise", **size)


INCREMENTAL = list(incremental_searches())
SLOW_INCREMENTAL = without(first_of_each_class(INCREMENTAL), INCREMENTAL[:1])
EXHAUSTIVE_INCREMENTAL = without(INCREMENTAL, INCREMENTAL[:1] + SLOW_INCREMENTAL)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(INCREMENTAL[:1])
def test_an_incremental_search_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(SLOW_INCREMENTAL)
def test_each_class_of_incremental_searches_is_an_estimator(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(EXHAUSTIVE_INCREMENTAL)
def test_incremental_searches_of_regressors_are_estimators(estimator, check):
    check(estimator)
