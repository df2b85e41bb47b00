from __future__ import annotations

import pytest

from dasktune.errors import TuneError
from dasktune.trainable.session import get_checkpoint, get_context, report


def test_a_report_outside_of_a_trial_warns_and_does_nothing():
    with pytest.warns(UserWarning, match="outside of a trial and does nothing"):
        report({"loss": 0.5})


def test_there_is_no_checkpoint_outside_of_a_trial():
    assert get_checkpoint() is None


def test_there_is_no_context_outside_of_a_trial():
    with pytest.raises(TuneError, match="outside of a trial"):
        get_context()
