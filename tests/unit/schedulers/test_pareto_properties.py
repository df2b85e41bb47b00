"""Experiments with several goals, as their results are read."""

from __future__ import annotations

from math import inf, nan

import pytest

from dasktune.errors import ConfigError
from dasktune.results.result import Result
from dasktune.trial.status import PublicStatus
from dasktune.tuner.result_grid import ResultGrid


def result(trial_id, *row):
    names = ("error", "hits", "seconds")
    return Result(
        trial_id=trial_id,
        config={},
        history=[dict(zip(names, row, strict=False))] if row else [],
        status=PublicStatus.TERMINATED,
        path="",
        load_checkpoint=print,
    )


RESULTS = [
    result("best of error", 0.1, 5),
    result("worse", 0.3, 5),
    result("best of hits", 0.5, 9),
    result("its equal", 0.5, 9),
    result("lacks hits", 0.0),
    result("nothing"),
    result("nan", nan, 100),
    result("infinite", 0.05, inf),
    result("text", "low", 10),
]


def grid(results=RESULTS, metric=("error", "hits"), mode=("min", "max")):
    return ResultGrid(results, "exp", metric=list(metric), mode=list(mode))


def test_the_front_holds_what_none_dominates_in_the_order_of_the_trials():
    front = [one.trial_id for one in grid().get_pareto_front()]
    assert front == ["best of error", "best of hits", "its equal"]


def test_metrics_may_be_chosen_afterwards():
    one = ResultGrid(RESULTS, "exp", metric="error", mode="min")
    assert one.get_pareto_front(["error", "hits"], ["min", "max"]) == grid().get_pareto_front()
    front = grid().get_pareto_front(mode=["max", "max"])
    assert [one.trial_id for one in front] == ["best of hits", "its equal"]


def test_there_is_no_front_where_none_has_all_metrics():
    assert grid(RESULTS[4:]).get_pareto_front() == []
    assert grid(RESULTS[4:]).get_hypervolume([1.0, 0.0]) == 0.0
    assert grid([]).get_pareto_front() == []


def test_the_hypervolume_counts_what_is_better_than_the_reference_point():
    assert grid().get_hypervolume([1.0, 4.0]) == pytest.approx(0.9 * 1 + 0.5 * 4)
    assert grid().get_hypervolume([0.1, 0.0]) == 0.0


def test_the_hypervolume_of_three_metrics_is_exact_too():
    results = [result("a", 1.0, 2, 2.0), result("b", 2.0, 3, 1.0)]
    several = grid(results, ("error", "hits", "seconds"), ("min", "max", "min"))
    # Boxes of 2 x 2 x 1 and 1 x 3 x 2, of which 1 x 2 x 1 is in both.
    assert several.get_hypervolume([3.0, 0, 3.0]) == 4 + 6 - 2


@pytest.mark.parametrize("reference", [[1.0], [1.0, 2.0, 3.0], [1.0, nan], [1.0, "low"], 1.0])
def test_a_reference_point_that_is_none_is_refused(reference):
    with pytest.raises(ConfigError, match="reference_point must be a finite number for each of"):
        grid().get_hypervolume(reference)


def test_a_front_of_one_metric_is_refused():
    one = ResultGrid(RESULTS, "exp", metric="error", mode="min")
    with pytest.raises(ConfigError, match="metric must be a list of at least two, got 'error'"):
        one.get_pareto_front()
    with pytest.raises(ConfigError, match="metric must be a list of at least two, got None"):
        ResultGrid(RESULTS, "exp").get_pareto_front()


def test_the_best_of_several_goals_must_be_said():
    with pytest.raises(ConfigError, match=r"Choose one of \['error', 'hits'\]"):
        grid().get_best_result()
    assert grid().get_best_result("error", "min").trial_id == "lacks hits"
    assert "ResultGrid of 9 trials" in repr(grid())
