from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from dasktune.trainable.contents import content_of, message_of, size_of
from dasktune.trainable.messages import Ended, Message, Reported
from dasktune.trial.checkpoint import CheckpointRecord

CHECKPOINT = CheckpointRecord(path="trials/a/c", index=0, iteration=1)


class Name(str):
    """Somebody's own string, which may not exist on the driver."""


def test_a_streamed_result_of_plain_values_is_its_metrics():
    metrics = {"loss": 0.5, "n": 1, "done": False, "tag": "x", "none": None}
    result = Reported(seq=3, metrics=metrics)
    content = content_of(result)
    assert content is metrics
    assert message_of(3, content) == result
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
    content = content_of(message)
    assert isinstance(content, bytes)
    assert message_of(3, content) == message == pickle.loads(content)
    assert size_of(content) == len(content)


def test_what_only_cloudpickle_can_pickle_is_pickled_by_it():
    def local() -> Any: ...

    message = message_of(1, content_of(Reported(seq=1, metrics={"f": local})))
    assert isinstance(message, Reported)
    assert message.metrics["f"].__name__ == "local"
