"""The trials of the new experiment."""

from __future__ import annotations

import json
from math import inf

import numpy as np

from dasktune.search.warm.copula_prior import normal_scores
from dasktune.search.warm.own_trials import OwnTrials


def made(trials):
    own = OwnTrials()
    for number, loss, length in trials:
        own.add(number, [number / 10], loss=loss, length=length)
    return own


def test_the_order_of_arrival_does_not_matter():
    trials = [(0, 0.3, inf), (1, 0.1, inf), (2, 0.2, inf)]
    one, other = made(trials), made(trials[::-1])
    assert one.points == other.points == [[0.0], [0.1], [0.2]]
    assert one.scores().tolist() == other.scores().tolist()
    assert one.state_dict() == other.state_dict()


def test_scores_are_those_of_the_losses():
    own = made([(0, 0.3, inf), (1, 0.1, inf), (2, inf, inf), (3, 0.1, inf)])
    np.testing.assert_array_equal(own.scores(), normal_scores([0.3, 0.1, inf, 0.1]))


def test_a_trial_that_was_stopped_early_is_worse_than_those_trained_longer():
    own = made([(0, 0.1, 1.0), (1, 0.2, 3.0), (2, 0.9, inf), (3, 0.3, 3.0)])
    assert np.argsort(own.scores()).tolist() == [2, 1, 3, 0]


def test_evaluated_configurations_precede_all_trials():
    own = made([(0, 0.3, inf)])
    own.add_evaluated([0.7], loss=0.1, length=inf)
    own.add_evaluated([0.8], loss=0.2, length=inf)
    assert own.points == [[0.8], [0.7], [0.0]]


def test_the_state_survives_json():
    own = made([(3, inf, inf), (0, 0.5, 2.0)])
    other = OwnTrials()
    other.load_state_dict(json.loads(json.dumps(own.state_dict())))
    assert other.points == own.points
    assert other.scores().tolist() == own.scores().tolist()


def test_normal_scores_are_symmetric_and_equal_losses_share_one():
    scores = normal_scores([4, 1, 1, 0])
    assert scores[1] == scores[2] == 0
    assert scores[0] == -scores[3] > 1
