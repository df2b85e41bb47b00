"""Pipelines whose transformers encode the targets, in searches that pause candidates."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.compose import make_column_transformer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import TargetEncoder

from dasktune.schedulers import SuccessiveHalvingScheduler
from dasktune.sklearn import TuneSearchCV

KINDS = np.array([["a", "b", "c", "d"][n * n % 7 % 4] for n in range(80)], dtype=object)
TARGETS = np.array([n % 3 % 2 for n in range(80)])


def encoders():
    encoder = TargetEncoder(random_state=0)
    return [encoder, make_column_transformer((encoder, [0]))]


# Older versions need `random_state` to draw the same folds each time.
@pytest.mark.filterwarnings("ignore:`TargetEncoder:FutureWarning")
@pytest.mark.parametrize("encoder", encoders())
def test_a_candidate_that_was_paused_sees_the_targets_no_better_than_before(encoder):
    model = SGDClassifier(loss="log_loss", random_state=0)
    options = {"n_iter": 4, "cv": 2, "max_iters": 4, "refit": False, "scoring": "neg_log_loss"}
    space = {"sgdclassifier__alpha": [0.1, 1.0, 10.0, 100.0]}
    searches = [
        TuneSearchCV(
            make_pipeline(encoder, model), space, random_state=0, scheduler=scheduler, **options
        ).fit(KINDS[:, np.newaxis], TARGETS)
        for scheduler in (None, SuccessiveHalvingScheduler(max_t=4, reduction_factor=2))
    ]
    straight, paused = (one.cv_results_ for one in searches)
    whole = paused["training_iteration"] == 4
    assert whole.any()
    name = "mean_test_score"
    np.testing.assert_array_equal(paused[name][whole], straight[name][whole])
