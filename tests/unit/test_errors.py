"""The exceptions: one tree, one sentence, and no loss on the way between processes."""

from __future__ import annotations

import pickle

import pytest

from dasktune import errors
from dasktune.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ClusterError,
    ClusterLost,
    ConfigError,
    ControlError,
    InvalidTransition,
    PreflightError,
    RecursiveDependencyError,
    ReportError,
    StorageError,
    TrialError,
    TuneError,
    check,
)

EXAMPLES = [
    TuneError("a"),
    ConfigError("a"),
    RecursiveDependencyError("a"),
    PreflightError("a"),
    ReportError("a"),
    TrialError("a_00000", "ValueError: no such loss", "Traceback ..."),
    ClusterError("a"),
    ClusterLost("a"),
    ControlError("there is no trial 'x'", "unknown"),
    StorageError("a"),
    CheckpointNotFound("a"),
    CheckpointDamaged("a"),
    InvalidTransition("a_00000 was told nonsense", ("pending", "running")),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_exception_survives_pickling(error):
    travelled = pickle.loads(pickle.dumps(error))
    assert type(travelled) is type(error)
    assert str(travelled) == str(error)
    assert travelled.__dict__ == error.__dict__
    assert isinstance(travelled, TuneError)


def test_the_examples_are_all_there_are():
    classes = {item for item in vars(errors).values() if isinstance(item, type)}
    assert {type(error) for error in EXAMPLES} == {item for item in classes if issubclass(item, Exception)}


def test_families_can_be_caught_together():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(PreflightError, ConfigError)
    assert issubclass(ClusterLost, ClusterError)
    assert issubclass(CheckpointNotFound, StorageError)
    assert issubclass(CheckpointDamaged, StorageError)
    assert not issubclass(TrialError, ConfigError)


def test_a_trials_error_shows_where_and_why():
    error = TrialError("a_00000", "ValueError: no such loss", "Traceback ...")
    assert str(error) == "trial a_00000 failed: ValueError: no such loss\n\nTraceback ..."
    assert str(TrialError("a_00000", "killed")) == "trial a_00000 failed: killed"


def test_an_invalid_transition_tells_the_story():
    assert str(InvalidTransition("no", ("pending", "running"))) == (
        "no. This is a bug in dasktune; the trial's story:\n  pending\n  running"
    )


def test_a_rule_that_holds_raises_nothing():
    check(True, "mode", "'min' or 'max'", "min")


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("", "mode must be 'min' or 'max', got 'least'"),
        ("Write min.", "mode must be 'min' or 'max', got 'least'. Write min."),
    ],
)
def test_a_broken_rule_names_argument_rule_and_value(hint, message):
    with pytest.raises(ConfigError) as caught:
        check(False, "mode", "'min' or 'max'", "least", hint)
    assert str(caught.value) == message
