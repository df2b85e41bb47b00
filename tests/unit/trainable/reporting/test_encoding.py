from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dasktune.trainable.reporting.encoding import (
    Content,
    ResultBatch,
    decode,
    encode,
    pack,
    size_of,
    size_of_packed,
    unpack,
)
from dasktune.trainable.reporting.trial_messages import Ended, Message, Reported
from dasktune.trial.checkpoint_record import CheckpointRecord

CHECKPOINT = CheckpointRecord(path="trials/a/c", index=0, iteration=1)


class Name(str):
    """Somebody's own string, which may not exist on the driver."""


def test_a_streamed_result_of_plain_values_is_its_metrics():
    metrics = {"loss": 0.5, "n": 1, "done": False, "tag": "x", "none": None}
    result = Reported(seq=3, metrics=metrics)
    content = encode(result)
    assert content is metrics
    assert decode(3, content) == result
    assert size_of(content) > 0


@pytest.mark.parametrize(
    "message",
    [
        Ended(seq=3),
        Reported(seq=3, metrics={"loss": 0.5}, awaits=True),
        Reported(seq=3, metrics={"loss": 0.5}, checkpoint=CHECKPOINT),
        Reported(seq=3, metrics={"loss": np.float64(0.5)}),
        Reported(seq=3, metrics={"losses": [0.5]}),
        Reported(seq=3, metrics={"text": "x" * 65}),
        Reported(seq=3, metrics={"name": Name("x")}),
        Reported(seq=3, metrics={Name("name"): 1}),
        Reported(seq=3, metrics={1: 1}),
    ],
)
def test_anything_else_is_pickled_on_its_own(message: Message):
    content = encode(message)
    assert isinstance(content, bytes)
    assert decode(3, content) == message == pickle.loads(content)
    assert size_of(content) == len(content)


def test_what_only_cloudpickle_can_pickle_is_pickled_by_it():
    def local() -> Any: ...

    message = decode(1, encode(Reported(seq=1, metrics={"f": local})))
    assert isinstance(message, Reported)
    assert message.metrics["f"].__name__ == "local"


def test_results_that_follow_each_other_travel_as_rows_below_their_names():
    contents: list[tuple[int, Content]] = [
        (4, b"started"),
        (5, {"loss": 0.5, "n": 1}),
        (6, {"loss": 0.25, "n": 2}),
        (7, {"n": 3, "loss": 0.125}),
        (8, {}),
        (9, b"saved"),
        (10, {}),
    ]
    packed = pickle.loads(pickle.dumps(pack(contents)))
    assert packed == (
        (4, b"started"),
        ResultBatch(5, ("loss", "n"), [(0.5, 1), (0.25, 2)]),
        ResultBatch(7, ("n", "loss"), [(3, 0.125)]),
        ResultBatch(8, (), [()]),
        (9, b"saved"),
        ResultBatch(10, (), [()]),
    )
    again = list(unpack(packed))
    assert again == contents
    first, second = (list(content) for _, content in again[1:3])
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert size_of_packed(packed) == sum(size_of(content) for _, content in contents)
