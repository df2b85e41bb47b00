from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigError
from dasktune.trial.checkpoint_record import CheckpointRecord
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


def beats(one: CheckpointRecord, other: CheckpointRecord, order: str) -> bool:
    """Say whether a checkpoint ranks before another one, by the words of the documentation."""
    first, second = one.metrics.get("eval/acc"), other.metrics.get("eval/acc")
    first = None if first is None or math.isnan(first) else first
    second = None if second is None or math.isnan(second) else second
    if first == second:
        return one.index > other.index
    if first is None or second is None:
        return second is None
    return first > second if order == "max" else first < second


@given(
    scores=st.lists(st.one_of(st.none(), st.sampled_from([NAN, -math.inf, 0.0, 1.0, math.inf]))),
    number=st.integers(1, 4),
    order=st.sampled_from(["max", "min"]),
)
def test_what_is_kept_is_the_best_and_the_newest_whenever_the_others_are_deleted(
    scores: list[float | None], number: int, order: Any
) -> None:
    keep = Retention(num_to_keep=number, score_attribute="eval/acc", score_order=order)
    every = records(*scores)
    kept: list[CheckpointRecord] = []
    for record in every:
        # As they arrive: what was deleted cannot come back.
        kept.append(record)
        gone = keep.expired(kept)
        kept = [one for one in kept if one not in gone]
        assert len(kept) <= number + 1
        assert record in kept
    by_rule = [
        one for one in every if one is every[-1] or sum(beats(other, one, order) for other in every) < number
    ]
    assert kept == by_rule
