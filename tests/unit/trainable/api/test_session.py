from __future__ import annotations

import re
from typing import Any

import pytest

from dasktune.errors import ConfigError, TuneError
from dasktune.trainable.api.session import get_checkpoint, get_context, report


def test_a_report_outside_of_a_trial_warns_and_does_nothing():
    with pytest.warns(UserWarning, match="outside of a trial and does nothing"):
        report({"loss": 0.5})


@pytest.mark.parametrize(
    ("given", "new"),
    [
        ({"loss": 1, "acc": 0.5}, r'got loss=1, acc=0.5. Write report({"loss": 1, "acc": 0.5}).'),
        ({}, r'got none. Write report({"loss": 1}).'),
        ({"checkpoint": None, "loss": "x" * 99}, f"got loss='{'x' * 39}. Write"),
    ],
)
def test_metrics_by_names_are_answered_with_the_form_of_today(given: Any, new: str):
    with pytest.raises(ConfigError, match=re.escape(f"metrics must be one dict, {new}")):
        report(**given)


def test_metrics_by_names_beside_a_dict_are_answered_with_the_form_of_today():
    message = re.escape('metrics must be one dict, got step=2. Write report({"step": 2}).')
    with pytest.raises(ConfigError, match=message):
        report({"loss": 1}, step=2)


def test_a_dict_by_its_name_is_one():
    with pytest.warns(UserWarning, match="outside of a trial") as caught:
        report(metrics={"loss": 0.5}, checkpoint=None)
    assert caught[0].filename == __file__


def test_there_is_no_checkpoint_outside_of_a_trial():
    assert get_checkpoint() is None


def test_there_is_no_context_outside_of_a_trial():
    with pytest.raises(TuneError, match="outside of a trial"):
        get_context()
