from __future__ import annotations

from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.retention import Retention

NAN = float("nan")


def records(*scores: float | None) -> list[CheckpointRecord]:
    return [
        CheckpointRecord(
            path=f"trials/a/checkpoint_{index:06d}_i01",
            index=index,
            iteration=index + 1,
            metrics={} if score is None else {"eval/acc": score},
        )
        for index, score in enumerate(scores)
    ]


def expired(retention: Retention, *scores: float | None) -> list[int]:
    return [record.index for record in retention.expired(records(*scores))]


def test_without_a_number_everything_stays() -> None:
    assert expired(Retention(score_attribute="eval/acc"), 1, 2, 3) == []
    assert [one.index for one in Retention().best(records(1, 2))] == [1, 0]


def test_without_a_score_the_newest_stay() -> None:
    assert expired(Retention(num_to_keep=2), 9, 8, 7, 6) == [0, 1]


@pytest.mark.parametrize(("order", "gone"), [("max", [0, 2]), ("min", [1, 2])])
def test_the_best_and_the_newest_stay(order: Any, gone: list[int]) -> None:
    keep = Retention(num_to_keep=1, score_attribute="eval/acc", score_order=order)
    assert expired(keep, 1, 9, 5, 7) == gone


def test_nan_and_missing_are_worse_than_every_number() -> None:
    keep = Retention(num_to_keep=2, score_attribute="eval/acc")
    assert expired(keep, float("-inf"), NAN, None, 0.0, None) == [1, 2]


def test_among_equals_the_older_goes_first() -> None:
    keep = Retention(num_to_keep=2, score_attribute="eval/acc")
    assert expired(keep, 1, 1, 1, 1) == [0, 1]
    assert expired(keep, NAN, None, NAN) == [0]


def test_the_order_of_the_records_does_not_matter() -> None:
    keep = Retention(num_to_keep=1, score_attribute="eval/acc")
    assert [one.index for one in keep.expired(records(3, 1, 2)[::-1])] == [1]


def test_no_record_is_no_trouble() -> None:
    assert Retention(num_to_keep=1).expired([]) == []


def test_best_is_best_first() -> None:
    keep = Retention(num_to_keep=2, score_attribute="eval/acc", score_order="min")
    assert [one.index for one in keep.best(records(3, 1, 2))] == [1, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_to_keep": 0},
        {"num_to_keep": True},
        {"num_to_keep": 1.5},
        {"score_attribute": ""},
        {"score_attribute": 3},
        {"score_order": "best"},
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"{name} must be"):
        Retention(**arguments)
