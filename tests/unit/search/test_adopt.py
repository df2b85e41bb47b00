"""Configurations of an earlier session that a search algorithm would not propose again."""

from __future__ import annotations

from typing import Any

from numpy.random import SeedSequence

from dasktune.search import (
    FINISHED,
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Searcher,
    SearchGenerator,
)
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec
from dasktune.space import uniform


def spec(max_concurrent: int = 0) -> SearchSpec:
    return SearchSpec(
        space={"x": uniform(0, 1)},
        num_samples=3,
        metric="loss",
        mode="min",
        seed=SeedSequence(0),
        max_concurrent=max_concurrent,
    )


class Plan(Searcher):
    """Answers what it was given."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.adopted: list[tuple[str, Any]] = []
        self.ended: list[str] = []

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        return self.answers.pop(0)

    def adopt(self, trial_id: str, config: Any) -> None:
        self.adopted.append((trial_id, config))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.ended.append(trial_id)


def generator(searcher: Searcher) -> SearchGenerator:
    search = SearchGenerator(searcher)
    search.setup(spec())
    return search


def test_a_searcher_gets_another_configuration_and_later_the_end():
    plan = Plan({"x": 1})
    search = generator(plan)
    assert search.next_trial("a").config == {"x": 1}
    search.adopt("a", {"x": 2})
    assert plan.adopted == [("a", {"x": 2})]
    search.on_trial_complete("a")
    assert plan.ended == ["a"]
    assert search.state_dict()["count"] == 1


def test_a_trial_for_which_a_searcher_has_no_answer_any_more_is_its_own_all_the_same():
    plan = Plan(FINISHED)
    search = generator(plan)
    assert search.next_trial("a").config is None
    search.adopt("a", {"x": 2})
    search.on_trial_complete("a")
    assert plan.ended == ["a"]
    assert search.state_dict()["count"] == 1


def test_an_answer_that_was_none_then_is_taken_back():
    plan = Plan({"x": 1})
    search = generator(plan)
    search.next_trial("a")
    search.adopt("a", None)
    search.on_trial_complete("a")
    assert plan.ended == []
    assert search.state_dict()["count"] == 0


def test_a_limiter_counts_what_is_adopted():
    plan = Plan(None, {"x": 1}, {"x": 2})
    limiter = ConcurrencyLimiter(plan, 1)
    limiter.set_search_properties("loss", "min", {})
    assert limiter.suggest("a") is None
    limiter.adopt("a", {"x": 0})
    assert limiter.suggest("b") is None
    limiter.on_trial_complete("a")
    assert limiter.suggest("b") == {"x": 1}
    limiter.adopt("b", None)
    assert limiter.suggest("c") == {"x": 2}


class LimitsItself(Plan):
    """Needs no slots."""

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        return True


def test_a_searcher_that_limits_itself_counts_by_itself():
    limiter = ConcurrencyLimiter(LimitsItself({"x": 1}), 1)
    limiter.adopt("a", {"x": 0})
    assert limiter.state_dict()["open"] == []


def test_variants_count_what_is_adopted():
    search = BasicVariantGenerator()
    search.setup(spec(max_concurrent=1))
    search.adopt("a", {"x": 0.5})
    assert search.next_trial("b").config is None
    search.adopt("a", None)
    assert search.next_trial("b").config is not None


def test_a_search_that_does_not_care_need_not():
    class Nothing(SearchAlgorithm):
        total_samples = 0

        def setup(self, spec: SearchSpec) -> None:
            """Do nothing."""

        def next_trial(self, trial_id: str) -> Any:
            """Do nothing."""

    class Ones(Searcher):
        def suggest(self, trial_id: str) -> Any:
            return {"x": 1}

    Nothing().adopt("a", {})
    Ones().adopt("a", {})
