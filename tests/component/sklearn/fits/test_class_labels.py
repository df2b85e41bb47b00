"""Targets of more than one dimension."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import SGDClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dasktune.sklearn import HyperbandSearchCV, IncrementalSearchCV, TuneSearchCV
from dasktune.sklearn.fits.class_labels import classes_of, labels_of, merge_labels

X, y = load_iris(return_X_y=True)
FEATURES, LABELS = make_multilabel_classification(60, n_features=5, n_classes=4, random_state=0)
ALPHA = {"alpha": [1e-4, 1e-3]}


def sgd():
    return SGDClassifier(random_state=0)


def mlp():
    return MLPClassifier((4,), random_state=0)


def tuned(model, space):
    return TuneSearchCV(model, space, n_iter=2, cv=2, max_iters=2, random_state=0)


def incremental(model, space):
    return IncrementalSearchCV(
        model, space, n_initial_parameters="grid", max_iter=2, random_state=0, decay_rate=None
    )


def hyperband(model, space):
    return HyperbandSearchCV(model, space, max_iter=2, aggressiveness=2, random_state=0)


@pytest.mark.parametrize("search", [tuned, incremental, hyperband])
def test_a_single_column_is_taken_as_a_vector_with_the_warning_of_scikit_learn(search):
    flat = search(sgd(), ALPHA).fit(X, y)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        found = search(sgd(), ALPHA).fit(X, y[:, np.newaxis])
    assert found.best_score_ == flat.best_score_
    np.testing.assert_array_equal(found.predict(X), flat.predict(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.parametrize("search", [tuned, incremental])
def test_a_data_frame_of_one_column_is_taken_as_a_vector(search):
    pandas = pytest.importorskip("pandas")
    found = search(sgd(), ALPHA).fit(X, pandas.DataFrame({"kind": y}))
    assert found.best_score_ == search(sgd(), ALPHA).fit(X, y).best_score_


@pytest.mark.parametrize("search", [tuned, incremental, hyperband])
@pytest.mark.parametrize("as_given", [np.asarray, sparse.csr_matrix])
def test_several_labels_of_a_sample_are_numbered_by_their_columns(search, as_given):
    found = search(mlp(), ALPHA).fit(FEATURES, as_given(LABELS))
    assert np.isfinite(found.best_score_)
    assert found.predict(FEATURES).shape == LABELS.shape


@pytest.mark.parametrize("search", [tuned, incremental, hyperband])
@pytest.mark.parametrize("targets", [LABELS, np.column_stack([y, y[::-1]])[::2], LABELS[:, :1]])
def test_a_classifier_for_each_column_gets_the_classes_of_each(search, targets):
    space = {"estimator__alpha": [1e-4, 1e-3]}
    samples = X[: len(targets)]
    found = search(MultiOutputClassifier(sgd()), space).fit(samples, targets)
    assert np.isfinite(found.best_score_)
    assert found.predict(samples).shape == targets.shape


def test_the_last_step_of_a_pipeline_gets_the_classes_that_it_takes():
    pipeline = make_pipeline(StandardScaler(), MultiOutputClassifier(sgd()))
    space = {"multioutputclassifier__estimator__alpha": [1e-4, 1e-3]}
    assert np.isfinite(tuned(pipeline, space).fit(FEATURES, LABELS).best_score_)


def test_the_classes_of_all_blocks_are_known_from_the_start():
    array = pytest.importorskip("dask.array")
    # The first block has but two of the three classes.
    order = np.argsort(y, kind="stable")
    found = incremental(sgd(), ALPHA).fit(array.from_array(X[order], (75, 4)), array.from_array(y[order], 75))
    assert list(found.best_estimator_.classes_) == [0, 1, 2]


def test_whether_labels_are_yes_or_no_is_known_of_all_blocks_together_only():
    parts = [labels_of(np.array(block)) for block in ([[0, 1], [1, 0]], [[0, 2], [0, 0]])]
    first, second = classes_of(mlp(), merge_labels(parts))
    assert (list(first), list(second)) == ([0, 1], [0, 1, 2])
    assert list(classes_of(mlp(), parts[0])) == [0, 1]
