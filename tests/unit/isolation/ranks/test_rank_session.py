"""User code in a rank, with a coordinator that a test plays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from dasktune.errors import ConfigError
from dasktune.isolation.ranks.rank_messages import (
    RankReport,
    Reduced,
    ReduceMetrics,
    Release,
    ToRank,
    WordOfRank,
    pack_metrics,
    unpack_metrics,
)
from dasktune.isolation.ranks.rank_session import RankSession
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.async_exception import TrialInterrupted
from dasktune.trainable.ranks import RankInfo, RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory

INFO = RankInfo(world_rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, num_nodes=1)


class Coordinator:
    """The other end of a rank: it answers each message at once."""

    def __init__(self, *answers: Callable[[Any], ToRank], storage: Storage | None = None) -> None:
        self.said: list[Any] = []
        self._answers = list(answers)
        spec = TrialSpec(
            trial_id="a",
            incarnation=1,
            resources=PlacementGroupFactory([{"CPU": 1}]),
            storage=storage or Storage("/tmp/runs"),
            trial_dir="a",
            experiment_name="e",
            trial_name="a",
            ranks=RankSettings(),
        )
        self.session = RankSession(spec, INFO, self._hear)

    def _hear(self, message: WordOfRank) -> None:
        # Messages are pickled without the classes of user code.
        self.said.append(pickle.loads(pickle.dumps(message)))
        if self._answers:
            self.session.answer(self._answers.pop(0)(message))


def release(message: RankReport) -> Release:
    """Release a rank from its report."""
    return Release(number=message.number)


def test_objects_of_classes_that_pickle_cannot_find_are_reported() -> None:
    class Own:
        """A class that only user code has."""

    other = Coordinator(release)
    other.session.report({"loss": 1.0, "own": Own()})
    assert type(unpack_metrics(other.said[0].metrics)["own"]).__name__ == "Own"


def test_a_refused_report_does_not_count() -> None:
    def fail(message: RankReport) -> ToRank:
        raise OSError("no memory")

    other = Coordinator(fail, release)
    with pytest.raises(ConfigError):
        other.session.report(3)
    with pytest.raises(OSError, match="no memory"):
        other.session.report({"loss": 1.0})
    other.session.report({"loss": 1.0})
    assert [one.number for one in other.said] == [1, 1]


def test_rank_0_reduces_what_all_ranks_have_reported() -> None:
    def ask(message: RankReport) -> ReduceMetrics:
        return ReduceMetrics(number=1, metrics=(message.metrics, pack_metrics({"loss": 3.0})))

    other = Coordinator(ask, release)
    other.session.reduce = lambda metrics: {"loss": sum(one["loss"] for one in metrics)}
    other.session.report({"loss": 1.0})
    assert isinstance(other.said[1], Reduced)
    assert unpack_metrics(other.said[1].metrics) == {"loss": 4.0}


def test_rank_0_raises_an_error_of_its_reduction_when_all_ranks_do() -> None:
    def ask(message: RankReport) -> ReduceMetrics:
        return ReduceMetrics(number=1, metrics=(message.metrics,))

    def refuse(message: Reduced) -> Release:
        assert message.error is not None
        assert message.error.message == "ZeroDivisionError: division by zero"
        return Release(number=message.number, error=message.error)

    other = Coordinator(ask, refuse, release)
    other.session.reduce = lambda metrics: 1 / 0
    with pytest.raises(ZeroDivisionError):
        other.session.report({"loss": 1.0})
    other.session.reduce = None
    # The report is over, on this rank as on the others.
    other.session.report({"loss": 1.0})
    assert [one.number for one in other.said] == [1, 1, 2]


@pytest.mark.parametrize("left", [True, False], ids=["left", "closed"])
def test_nothing_waits_for_a_checkpoint_after_the_end(left: bool) -> None:
    other = Coordinator()
    other.session.has_left = left
    if not left:
        other.session.close()
    with pytest.raises(TrialInterrupted):
        other.session.get_checkpoint()
    assert other.said == []
