"""The ranks of a distributed trial on its page."""

from __future__ import annotations

from typing import Any

from projection_kit import about, projection_of, result, suggested

from dasktune.dashboard.report.rank_lines import rank_lines
from dasktune.trial.resources import ElasticPlacement, HostPlacement


def started(**more: Any) -> dict[str, Any]:
    return about("TrialStarted", "a", 0.5, status="RUNNING", worker="tcp://w:1", **more)


def lines_of(*records: dict[str, Any]) -> list[str]:
    """Return the lines of the only trial."""
    return list(rank_lines(projection_of(suggested("a"), *records).trials[0]))


def test_a_trial_of_one_process_has_none() -> None:
    assert lines_of(started(), result("a", 1, 2.0, loss=1.0)) == []


def test_each_rank_has_a_line() -> None:
    ranks = [["tcp://h1:1", ["0"]], ["tcp://h2:1", ["0", "1"]]]
    seen = {"slowest_rank": 1, "rank_wait_s": 0.5}
    head, columns, first, second = lines_of(
        started(ranks=ranks), result("a", 1, 2.0, loss=1.0, **seen), result("a", 2, 3.0, **seen)
    )
    assert head == "ranks: 2"
    assert columns.split()[:4] == ["rank", "host", "worker", "GPUs"]
    assert first.split() == ["0", "h1", "tcp://h1:1", "0", "2", "0", "0"]
    assert second.split() == ["1", "h2", "tcp://h2:1", "0,", "1", "2", "2", "1"]


def test_a_trial_that_trains_with_fewer_ranks_says_how_many_it_may_have() -> None:
    elastic = ElasticPlacement(HostPlacement([{"CPU": 1.0}] * 4), 2, 4)
    ranks = [["tcp://h1:1", []], ["tcp://h2:1", []]]
    asked = {**suggested("a"), "resources": elastic.to_json()}
    [trial] = projection_of(asked, started(ranks=ranks)).trials
    assert next(rank_lines(trial)) == "ranks: 2 of 4"
    [trial] = projection_of(asked, started(ranks=2 * ranks)).trials
    assert next(rank_lines(trial)) == "ranks: 4"


def test_of_many_ranks_the_slowest_are_listed() -> None:
    ranks = [[f"tcp://h{number}:1", []] for number in range(40)]
    late = [
        result("a", step, float(step), slowest_rank=39 - step, rank_wait_s=float(step))
        for step in range(1, 20)
    ]
    head, _, *lines = lines_of(started(ranks=ranks), *late)
    assert head == "ranks: 40, the 16 slowest"
    assert [int(line.split()[0]) for line in lines] == list(range(20, 36))
