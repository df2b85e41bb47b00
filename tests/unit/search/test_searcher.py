"""The contracts of search, and what stands between a searcher and the experiment."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search.concurrency_limiter import ConcurrencyLimiter
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.search.searcher import FINISHED, Searcher
from dasktune.search.searcher_adapter import SearchGenerator
from dasktune.space.primitives import grid_search, uniform


class Counting(Searcher):
    """Suggests 0, 1, 2, ...; writes down what it hears."""

    def __init__(self, *, end=1000, takes_space=False, limits_itself=False, **kwargs):
        super().__init__(**kwargs)
        self.end = end
        self.takes_space = takes_space
        self.limits_itself = limits_itself
        self.count = 0
        self.busy = False
        self.heard = []
        self.spec = {}

    def suggest(self, trial_id):
        if self.busy:
            return None
        if self.count >= self.end:
            return FINISHED
        self.count += 1
        return {"x": self.count - 1}

    def on_trial_result(self, trial_id, result):
        self.heard.append((trial_id, "result"))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.heard.append((trial_id, "error" if error else result))

    def on_pause(self, trial_id):
        self.heard.append((trial_id, "pause"))

    def on_unpause(self, trial_id):
        self.heard.append((trial_id, "unpause"))

    def set_search_properties(self, metric, mode, config, **spec):
        super().set_search_properties(metric, mode, config, **spec)
        self.spec = spec
        return self.takes_space

    def set_max_concurrency(self, max_concurrent):
        return self.limits_itself

    def add_evaluated_point(self, parameters, value, **how):
        self.heard.append((parameters, value, how))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Minimal(Searcher):
    def suggest(self, trial_id):
        return {}


def spec(space=None, num_samples=-1, **changes):
    arguments = {"metric": "loss", "mode": "min", "seed": SeedSequence(0)} | changes
    return SearchSpec(space=space or {}, num_samples=num_samples, **arguments)


def through_json(state):
    return json.loads(json.dumps(state))


class TestSearcher:
    def test_a_searcher_needs_one_method_and_gets_sound_defaults(self):
        searcher = Minimal()
        assert (searcher.metric, searcher.mode) == (None, None)
        searcher.on_trial_result("a", {})
        searcher.on_trial_complete("a")
        assert searcher.set_max_concurrency(3) is False
        searcher.load_state_dict(searcher.state_dict())
        assert searcher.state_dict() == {}
        with pytest.raises(NotImplementedError, match="Minimal cannot learn from evaluated"):
            searcher.add_evaluated_point({"x": 1}, 0.5)
        with pytest.raises(TypeError, match="abstract"):
            Searcher()

    def test_there_is_one_end(self):
        assert pickle.loads(pickle.dumps(FINISHED)) is FINISHED

    def test_what_the_constructor_left_open_comes_from_the_experiment(self):
        searcher = Minimal(mode="min")
        assert searcher.set_search_properties("loss", "min", {}) is False
        assert (searcher.metric, searcher.mode) == ("loss", "min")
        searcher.set_search_properties(None, None, {})
        assert (searcher.metric, searcher.mode) == ("loss", "min")

    def test_several_metrics_contain_the_experiments_one(self):
        searcher = Minimal(metric=["loss", "size"], mode=["min", "max"])
        searcher.set_search_properties("size", "max", {})
        assert searcher.metric == ["loss", "size"]
        with pytest.raises(ConfigError, match=r"Minimal\(metric=...\) must be equal to TuneConfig"):
            searcher.set_search_properties("acc", "max", {})

    @pytest.mark.parametrize(("metric", "mode"), [("acc", "min"), ("loss", "max")])
    def test_goals_may_not_be_contradicted(self, metric, mode):
        with pytest.raises(ConfigError, match=r"Set (metric|mode) in one place"):
            Minimal(metric="loss", mode="min").set_search_properties(metric, mode, {})

    @pytest.mark.parametrize(
        ("metric", "mode"),
        [("loss", "least"), (["a", "b"], ["min"]), (["a"], "min"), ("a", ["min"]), (None, ["min"])],
    )
    def test_goals_that_do_not_match_are_refused(self, metric, mode):
        with pytest.raises(ConfigError, match="mode must be"):
            Minimal(metric=metric, mode=mode)

    def test_a_search_algorithm_needs_three_methods_and_gets_sound_defaults(self):
        class Algorithm(SearchAlgorithm):
            total_samples = None

            def setup(self, spec):
                pass

            def next_trial(self, trial_id):
                return Suggestion(config=None)

        algorithm = Algorithm()
        assert algorithm.lookahead == 1
        algorithm.on_trial_result("a", {})
        algorithm.on_trial_complete("a")
        algorithm.load_state_dict(algorithm.state_dict())
        assert algorithm.state_dict() == {}


class TestSearchGenerator:
    def generator(self, searcher=None, **changes):
        generator = SearchGenerator(searcher or Counting())
        generator.setup(spec(**changes))
        return generator

    def test_there_are_as_many_trials_as_the_user_wants(self):
        generator = self.generator(num_samples=2)
        assert generator.total_samples == 2
        suggestions = [generator.next_trial(name) for name in "abc"]
        assert suggestions == [
            Suggestion(config={"x": 0}, tag="0_x=0"),
            Suggestion(config={"x": 1}, tag="1_x=1"),
            Suggestion(config=None, finished=True),
        ]
        assert generator.is_finished
        assert generator.lookahead == 1

    def test_without_end_it_lasts_until_the_searcher_has_finished(self):
        generator = self.generator(Counting(end=1))
        assert generator.total_samples is None
        assert not generator.next_trial("a").finished
        assert not generator.is_finished
        assert [generator.next_trial("b").finished for _ in range(2)] == [True, True]
        assert generator.searcher.count == 1

    def test_a_busy_searcher_is_asked_again_for_the_same_trial(self):
        generator = self.generator()
        generator.searcher.busy = True
        assert generator.next_trial("a") == Suggestion(config=None, finished=False)
        generator.searcher.busy = False
        assert generator.next_trial("a").config == {"x": 0}

    def test_what_user_code_does_to_its_config_the_searcher_does_not_see(self):
        class Sharing(Searcher):
            def __init__(self):
                super().__init__()
                self.answer = {"layers": [1, 2]}

            def suggest(self, trial_id):
                return self.answer

        generator = self.generator(Sharing(), space={"data": {"paths": ["p"]}})
        config = generator.next_trial("a").config
        config["layers"].append(3)
        config["data"]["paths"].append("q")
        assert generator.next_trial("b").config == {"data": {"paths": ["p"]}, "layers": [1, 2]}

    def test_plain_values_of_the_space_are_laid_under_the_suggestion(self):
        class Nested(Searcher):
            def suggest(self, trial_id):
                return {"opt": {"lr": 0.1}, "seed": {"n": 2}}

        space = {"opt": {"lr": 1.0, "name": "adam"}, "seed": 1, "data": "p"}
        config = self.generator(Nested(), space=space).next_trial("a").config
        assert config == {"opt": {"lr": 0.1, "name": "adam"}, "seed": {"n": 2}, "data": "p"}

    def test_a_name_is_given_once(self):
        generator = self.generator()
        generator.next_trial("a")
        generator.on_trial_complete("a", {})
        with pytest.raises(ConfigError, match="trial_id must be new to the search, got 'a'"):
            generator.next_trial("a")

    def test_each_end_comes_once_and_strangers_not_at_all(self):
        generator = self.generator()
        generator.next_trial("a")
        generator.next_trial("b")
        generator.on_trial_result("a", {})
        for _ in range(2):
            generator.on_trial_complete("a", {"loss": 1})
            generator.on_trial_complete("b", None, error=True)
            generator.on_trial_complete("stranger", {})
        generator.on_trial_result("a", {})
        generator.on_trial_result("stranger", {})
        assert generator.searcher.heard == [("a", "result"), ("a", {"loss": 1}), ("b", "error")]

    @pytest.mark.parametrize(
        ("space", "path"),
        [
            ({"x": grid_search([1, 2])}, "x"),
            ({"a": {"b": [1, {"c": grid_search([1])}]}}, "a/b/1/c"),
            ({"a": ({"grid_search": [1]},)}, "a/0"),
        ],
    )
    def test_a_grid_is_refused_with_its_place(self, space, path):
        with pytest.raises(ConfigError, match=f"{path}.* must be a domain .* Counting cannot search a grid"):
            self.generator(Counting(takes_space=True), space=space)

    def test_a_searcher_with_its_own_space_leaves_no_domain_unsaid(self):
        with pytest.raises(ConfigError, match="because Counting has its own search space"):
            self.generator(space={"x": uniform(0, 1)})

    def test_a_searcher_that_takes_the_space_must_fill_all_of_it(self):
        taking = Counting(takes_space=True)
        space = {"x": uniform(0, 9), "data": "p"}
        assert self.generator(taking, space=space).next_trial("a").config == {"x": 0, "data": "p"}
        generator = self.generator(Counting(takes_space=True), space={"y": {"z": uniform(0, 1)}})
        with pytest.raises(ConfigError, match=r"a value for every domain, .* Missing: \['y/z'\]"):
            generator.next_trial("a")

    def test_an_answer_that_is_no_config_is_refused(self):
        class Wrong(Searcher):
            def suggest(self, trial_id):
                return [1]

        with pytest.raises(ConfigError, match=r"Wrong.suggest\(...\) must be a dict, None or"):
            self.generator(Wrong()).next_trial("a")

    def test_only_a_searcher_can_be_adapted(self):
        with pytest.raises(ConfigError, match="searcher must be a Searcher, got"):
            SearchGenerator(SearchGenerator(Counting()))

    def test_the_searcher_gets_goal_seed_and_number(self):
        generator = self.generator(num_samples=3, metric="acc", mode="max")
        assert (generator.searcher.metric, generator.searcher.mode) == ("acc", "max")
        assert generator.searcher.spec["num_samples"] == 3
        assert generator.searcher.spec["seed"].entropy == 0

    def test_the_users_limit_is_kept(self):
        generator = self.generator(max_concurrent=1)
        assert generator.next_trial("a").config
        assert generator.next_trial("b") == Suggestion(config=None, finished=False)
        generator.on_trial_complete("a", {})
        assert generator.next_trial("b").config

    def test_a_searcher_that_limits_itself_is_not_wrapped(self):
        searcher = Counting(limits_itself=True)
        assert self.generator(searcher, max_concurrent=1).searcher is searcher

    def test_two_limits_must_agree(self):
        limiter = ConcurrencyLimiter(Counting(), 2)
        assert self.generator(limiter, max_concurrent=2).searcher is limiter
        with pytest.raises(ConfigError, match=r"equal to ConcurrencyLimiter\(max_concurrent=2"):
            self.generator(ConcurrencyLimiter(Counting(), 2), max_concurrent=3)

    def test_its_state_survives(self):
        first = self.generator(num_samples=3, max_concurrent=2)
        first.next_trial("a")
        first.next_trial("b")
        first.on_trial_complete("a", {"loss": 1.0})
        second = self.generator(num_samples=3, max_concurrent=2)
        second.load_state_dict(through_json(first.state_dict()))
        with pytest.raises(ConfigError, match="new to the search"):
            second.next_trial("a")
        assert second.next_trial("c").config == {"x": 2}
        assert second.next_trial("d").finished
        second.on_trial_complete("b", {"loss": 2.0})
        second.on_trial_complete("a", {"loss": 2.0})
        assert second.searcher.searcher.heard == [("b", {"loss": 2.0})]
        assert second.state_dict()["open"] == {"a": False, "b": False, "c": True}

    def test_pauses_of_its_own_trials_reach_the_searcher(self):
        search = SearchGenerator(Counting())
        search.setup(spec())
        search.next_trial("a")
        for name in ("a", "stranger"):
            search.on_trial_pause(name)
            search.on_trial_unpause(name)
        search.on_trial_complete("a", {})
        search.on_trial_pause("a")
        search.on_trial_unpause("a")
        assert search.searcher.heard == [("a", "pause"), ("a", "unpause"), ("a", {})]


class TestConcurrencyLimiter:
    def test_a_slot_is_taken_until_its_trial_has_ended(self):
        limiter = ConcurrencyLimiter(Counting(), 2)
        assert [limiter.suggest(name) for name in "abc"] == [{"x": 0}, {"x": 1}, None]
        limiter.on_trial_result("a", {})
        assert limiter.suggest("c") is None
        limiter.on_trial_complete("a", None, error=True)
        assert limiter.suggest("c") == {"x": 2}
        assert limiter.searcher.heard == [("a", "result"), ("a", "error")]

    def test_ends_of_strangers_and_repeated_ends_free_nothing(self):
        limiter = ConcurrencyLimiter(Counting(), 1)
        limiter.suggest("a")
        limiter.on_trial_complete("stranger", {})
        assert limiter.suggest("b") is None
        limiter.on_trial_complete("a", {})
        limiter.suggest("b")
        limiter.on_trial_complete("a", {})
        assert limiter.suggest("c") is None
        assert limiter.searcher.heard == [("a", {})]

    def test_an_answer_without_a_config_takes_no_slot(self):
        limiter = ConcurrencyLimiter(Counting(end=1), 1)
        limiter.searcher.busy = True
        assert limiter.suggest("a") is None
        limiter.searcher.busy = False
        assert limiter.suggest("a") == {"x": 0}
        limiter.on_trial_complete("a", {})
        assert limiter.suggest("b") is FINISHED
        assert limiter.state_dict()["open"] == []

    def test_a_searcher_that_raises_loses_no_slot(self):
        class Failing(Counting):
            def suggest(self, trial_id):
                if trial_id == "bad":
                    raise ValueError(trial_id)
                return super().suggest(trial_id)

            def on_trial_complete(self, trial_id, result=None, error=False):
                raise ValueError(trial_id)

        limiter = ConcurrencyLimiter(Failing(), 1)
        with pytest.raises(ValueError, match="bad"):
            limiter.suggest("bad")
        assert limiter.suggest("a")
        with pytest.raises(ValueError, match="a"):
            limiter.on_trial_complete("a", {})
        assert limiter.suggest("b")

    def test_a_batch_comes_at_once_when_its_last_trial_has_ended(self):
        limiter = ConcurrencyLimiter(Counting(), 2, batch=True)
        assert [limiter.suggest(name) for name in "abc"] == [{"x": 0}, {"x": 1}, None]
        limiter.on_trial_complete("b", {"loss": 1})
        assert limiter.suggest("c") is None
        assert limiter.searcher.heard == []
        limiter.on_trial_complete("a", None, error=True)
        assert limiter.searcher.heard == [("b", {"loss": 1}), ("a", "error")]
        assert limiter.suggest("c") == {"x": 2}

    def test_a_batch_is_not_over_before_it_is_full(self):
        limiter = ConcurrencyLimiter(Counting(), 2, batch=True)
        limiter.suggest("a")
        limiter.on_trial_complete("a", {})
        assert limiter.searcher.heard == []
        assert limiter.suggest("b") == {"x": 1}
        limiter.on_trial_complete("b", {})
        assert limiter.searcher.heard == [("a", {}), ("b", {})]

    def test_a_batch_that_the_searcher_cuts_short_comes_all_the_same(self):
        limiter = ConcurrencyLimiter(Counting(end=1), 3, batch=True)
        limiter.suggest("a")
        assert limiter.suggest("b") is FINISHED
        limiter.on_trial_complete("a", {})
        assert limiter.searcher.heard == [("a", {})]
        ended = ConcurrencyLimiter(Counting(end=1), 3, batch=True)
        ended.suggest("a")
        ended.on_trial_complete("a", {})
        assert ended.suggest("b") is FINISHED
        assert ended.searcher.heard == [("a", {})]

    def test_the_last_batch_comes_though_the_samples_do_not_fill_it(self):
        limiter = ConcurrencyLimiter(Counting(), 2, batch=True)
        limiter.set_search_properties("loss", "min", {}, num_samples=3)
        for name in "abc":
            limiter.suggest(name)
            limiter.on_trial_complete(name, {})
        assert [name for name, _ in limiter.searcher.heard] == ["a", "b", "c"]

    def test_a_searcher_that_waits_for_its_own_batch_gets_it(self):
        class Patient(Counting):
            """Wants to see what became of a trial before it suggests another."""

            def suggest(self, trial_id):
                ended = sum(1 for heard in self.heard if heard[1] != "result")
                return super().suggest(trial_id) if ended == self.count else None

        limiter = ConcurrencyLimiter(Patient(), 3, batch=True)
        assert limiter.suggest("a") == {"x": 0}
        limiter.on_trial_complete("a", {})
        assert limiter.suggest("b") == {"x": 1}
        assert limiter.suggest("c") is None
        assert limiter.suggest("c") is None
        limiter.on_trial_complete("b", {})
        assert limiter.suggest("c") == {"x": 2}

    def test_a_searcher_that_limits_itself_is_left_to_it(self):
        limiter = ConcurrencyLimiter(Counting(limits_itself=True), 1)
        assert [limiter.suggest(name) for name in "ab"] == [{"x": 0}, {"x": 1}]
        limiter.on_trial_complete("a", {})
        assert limiter.searcher.heard == [("a", {})]

    def test_a_trial_that_waits_for_others_takes_no_slot(self):
        limiter = ConcurrencyLimiter(Counting(), 1)
        limiter.suggest("a")
        limiter.on_pause("a")
        limiter.on_pause("stranger")
        restored = ConcurrencyLimiter(Counting(), 1)
        restored.load_state_dict(through_json(limiter.state_dict()))
        for one in (limiter, restored):
            assert one.suggest("b") is not None
            assert one.suggest("c") is None
            one.on_unpause("a")
            one.on_trial_complete("b", {})
            assert one.suggest("c") is None
            one.on_trial_complete("a", {})
            assert one.suggest("c") is not None
        told = [("a", "pause"), ("stranger", "pause"), ("a", "unpause"), ("b", {}), ("a", {})]
        assert limiter.searcher.heard == told

    def test_a_trial_that_ends_while_it_is_paused_frees_one_slot(self):
        limiter = ConcurrencyLimiter(Counting(), 1)
        limiter.suggest("a")
        limiter.on_pause("a")
        limiter.on_trial_complete("a", {})
        assert [limiter.suggest(name) for name in "bc"] == [{"x": 1}, None]

    def test_a_batch_is_not_made_larger_for_trials_that_wait(self):
        limiter = ConcurrencyLimiter(Counting(), 2, batch=True)
        limiter.suggest("a")
        limiter.on_pause("a")
        assert [limiter.suggest(name) for name in "bc"] == [{"x": 1}, None]
        limiter.on_trial_complete("b", {})
        limiter.on_trial_complete("a", {})
        assert limiter.suggest("c") == {"x": 2}

    def test_a_searcher_that_limits_itself_gets_pauses(self):
        limiter = ConcurrencyLimiter(Counting(limits_itself=True), 1)
        limiter.suggest("a")
        limiter.on_pause("a")
        limiter.on_unpause("a")
        assert limiter.searcher.heard == [("a", "pause"), ("a", "unpause")]

    def test_goals_space_and_points_go_through(self):
        limiter = ConcurrencyLimiter(Counting(takes_space=True, mode="min"), 1)
        assert (limiter.metric, limiter.mode) == (None, "min")
        assert limiter.set_search_properties("loss", None, {"x": uniform(0, 1)}) is True
        assert (limiter.metric, limiter.mode) == ("loss", "min")
        limiter.add_evaluated_point({"x": 1}, 0.5, pruned=True)
        how = {"error": False, "pruned": True, "intermediate_values": None}
        assert limiter.searcher.heard == [({"x": 1}, 0.5, how)]

    @pytest.mark.parametrize("max_concurrent", [0, -1, 1.0, True, None])
    def test_a_limit_is_a_whole_number(self, max_concurrent):
        with pytest.raises(ConfigError, match="max_concurrent must be an int, at least 1, got"):
            ConcurrencyLimiter(Counting(), max_concurrent)

    @pytest.mark.parametrize(
        "searcher", [ConcurrencyLimiter(Counting(), 2), SearchGenerator(Counting()), None]
    )
    def test_only_a_searcher_that_is_not_limited_yet_can_be_limited(self, searcher):
        with pytest.raises(ConfigError, match="searcher must be a Searcher that is not limited"):
            ConcurrencyLimiter(searcher, 2)

    @settings(max_examples=50)
    @given(
        st.lists(st.integers(-1, 5), max_size=40),
        st.integers(1, 4),
        st.booleans(),
        st.integers(0, 40),
    )
    def test_slots_never_leak_and_the_state_survives(self, steps, limit, batch, cut):
        """-1 asks for a trial; any other number ends one of those that run."""
        limiter, count, running = ConcurrencyLimiter(Counting(), limit, batch), 0, []
        for i, step in enumerate(steps):
            if i == cut:
                restored = ConcurrencyLimiter(Counting(), limit, batch)
                restored.load_state_dict(through_json(limiter.state_dict()))
                restored.searcher.heard = limiter.searcher.heard
                assert restored.state_dict() == limiter.state_dict()
                limiter = restored
            if step >= 0:
                if running:
                    limiter.on_trial_complete(running.pop(step % len(running)), {})
            elif limiter.suggest(f"t{count}") is not None:
                running.append(f"t{count}")
                count += 1
            assert len(running) <= limit
        for trial_id in running:
            limiter.on_trial_complete(trial_id, {})
        while batch and len(limiter.searcher.heard) < count:
            assert limiter.suggest(f"t{count}") is not None
            limiter.on_trial_complete(f"t{count}", {})
            count += 1
        assert len(limiter.searcher.heard) == count
        assert limiter.state_dict()["open"] == []


def test_a_searcher_finishes_in_the_spelling_of_ray_tune():
    class Once(Searcher):
        def suggest(self, trial_id):
            return Searcher.FINISHED

    assert Once().suggest("a") is FINISHED
