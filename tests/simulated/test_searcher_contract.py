"""Every searcher of ours keeps the contract, and one that breaks it is found out."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from importlib.util import find_spec

import optuna
import pytest
from numpy.random import SeedSequence, default_rng

from dasktune.search import (
    FINISHED,
    AskTell,
    AskTellSearch,
    AxSearch,
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    QuasiRandomSearch,
    Repeater,
    Searcher,
    TuneBOHB,
    WarmStart,
)
from dasktune.space import choice, loguniform, randint, uniform
from dasktune.testing import SearcherContract

PRESETS = [{"x": 0.5, "model": {"layers": 3}}, {"model": {"activation": "gelu", "lr": 0.01}}]


#: What an experiment adds to a searcher's own space.
OWN = {"epochs": 3}


class Drifting(AskTell):
    """Moves from the best point so far; has no state of its own."""

    def __init__(self, domains, seed):
        self.domains = domains
        self.rng = default_rng(seed)
        self.told = []

    def ask(self):
        point = {path: one.sample(random_state=self.rng) for path, one in self.domains.items()}
        if self.told and self.rng.random() < 0.5:
            keep = min(self.told, key=lambda pair: pair[0])[1]
            path = sorted(self.domains)[int(self.rng.integers(len(self.domains)))]
            return {**keep, path: point[path]}
        return point

    def tell(self, params, loss):
        if loss is not None:
            self.told.append((loss, dict(params)))


class Saving(Drifting):
    """The same, with a state."""

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state, "told": [list(pair) for pair in self.told]}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]
        self.told = [tuple(pair) for pair in state["told"]]


class TestRandom(SearcherContract):
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return BasicVariantGenerator(points_to_evaluate=PRESETS)


class TestRandomWithALimit(SearcherContract):
    max_concurrent = 2

    def make_searcher(self):
        return BasicVariantGenerator(max_concurrent=2)


class TestSobol(SearcherContract):
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return QuasiRandomSearch(points_to_evaluate=PRESETS)


class TestHaltonWithASpaceOfItsOwn(SearcherContract):
    space = OWN

    def make_searcher(self):
        space = SearcherContract.space
        return QuasiRandomSearch(space, method="halton", scramble=False, seed=3)


class TestAskTell(SearcherContract):
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return AskTellSearch(Drifting, points_to_evaluate=PRESETS)


class TestAskTellWithAState(SearcherContract):
    metric, mode = "accuracy", "max"

    def make_searcher(self):
        return AskTellSearch(Saving)


class TestAskTellWithSeveralGoals(SearcherContract):
    metric, mode = ["loss", "accuracy"], ["min", "max"]

    def make_searcher(self):
        return AskTellSearch(Drifting)


class TestOptuna(SearcherContract):
    points_to_evaluate = PRESETS
    has_equal_states = False

    def make_searcher(self):
        return OptunaSearch(points_to_evaluate=PRESETS)


class TestOptunaWithSeveralGoals(SearcherContract):
    metric, mode = ["loss", "accuracy"], ["min", "max"]
    has_equal_states = False

    def make_searcher(self):
        return OptunaSearch()


@pytest.mark.skipif(find_spec("torch") is None, reason="GPSampler needs torch, which is large")
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
class TestOptunaWithAGaussianProcess(SearcherContract):
    # The last ones have a model, which takes some tenths of a second each.
    num_samples = 7
    has_equal_states = False

    def make_searcher(self):
        return OptunaSearch(sampler=optuna.samplers.GPSampler(seed=1, n_startup_trials=3))


class TestBOHB(SearcherContract):
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return TuneBOHB(points_to_evaluate=PRESETS)


class TestBOHBWithALimitAndConditions(SearcherContract):
    metric, mode = "accuracy", "max"
    max_concurrent = 3
    space = OWN

    def make_searcher(self):
        inner = {"beta": uniform(0, 1), "width": randint(1, 9)}
        space = {"lr": loguniform(1e-4, 1), "kind": choice(["plain", inner])}
        return TuneBOHB(space, max_concurrent=3)


#: An earlier experiment with a narrower space and another activation.
EARLIER = [
    (
        {"x": x, "model": {"lr": lr, "layers": 1 + index % 4, "activation": ("relu", "elu")[index % 2]}},
        (x - 0.5) ** 2 + lr,
    )
    for index, (x, lr) in enumerate((default_rng(0).random((20, 2)) * [1, 0.1]).tolist())
]


@lru_cache
def warm_start(limited):
    """Return a searcher that has fitted its regression: its copies need not fit it again."""
    if limited:
        space = {"x": uniform(0, 1), "kind": choice(["plain", {"width": randint(1, 9)}])}
        searcher = WarmStart([EARLIER], space, metric="accuracy", mode="max", max_concurrent=3)
    else:
        searcher = WarmStart([EARLIER], metric="loss", mode="min", points_to_evaluate=PRESETS)
    searcher.set_search_properties(None, None, SearcherContract.space, seed=SeedSequence(0))
    searcher._fitted_prior()
    return searcher


class TestWarmStart(SearcherContract):
    points_to_evaluate = PRESETS
    # Each suggestion takes some hundredths of a second. The last ones have a model of own results.
    num_samples = 8

    def make_searcher(self):
        return deepcopy(warm_start(limited=False))


# The other class and the unit tests find nearly all bugs that this one does.
@pytest.mark.slow
class TestWarmStartWithALimitAndConditions(SearcherContract):
    metric, mode = "accuracy", "max"
    max_concurrent = 3
    space = OWN
    num_samples = 12

    def make_searcher(self):
        return deepcopy(warm_start(limited=True))


class TestGaussianProcess(SearcherContract):
    # The last ones have a model; so few, because each takes some milliseconds.
    num_samples = 14
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return GaussianProcessSearch(points_to_evaluate=PRESETS, n_initial_points=5, max_observations=9)


class TestGaussianProcessWithConditions(SearcherContract):
    num_samples = 12
    metric, mode = "accuracy", "max"
    space = OWN

    def make_searcher(self):
        inner = {"beta": uniform(0, 1), "width": randint(1, 9)}
        space = {"lr": loguniform(1e-4, 1), "kind": choice(["plain", inner])}
        return GaussianProcessSearch(space, n_initial_points=4)


class TestHyperopt(SearcherContract):
    # The last ones have a model; so long, because each takes some milliseconds.
    num_samples = 12
    points_to_evaluate = PRESETS

    def make_searcher(self):
        return HyperOptSearch(points_to_evaluate=PRESETS, n_initial_points=8)


@pytest.mark.slow
class TestBayesOpt(SearcherContract):
    # The last ones have a model, which takes some tenths of a second each.
    num_samples = 7
    space = OWN

    def make_searcher(self):
        inner = {"lr": loguniform(1e-4, 1), "layers": randint(1, 5)}
        return BayesOptSearch({"x": (-2, 2), "model": inner}, random_search_steps=5)


@pytest.mark.skipif(find_spec("ax") is None, reason="Ax needs torch, which is large")
# It and torch call what is deprecated of their own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestAx(SearcherContract):
    # The last ones have a model, which takes seconds each.
    num_samples = 6

    def make_searcher(self):
        return AxSearch(initialization_budget=4)


class TestLimiter(SearcherContract):
    max_concurrent = 3

    def make_searcher(self):
        return ConcurrencyLimiter(AskTellSearch(Drifting), max_concurrent=3)


class TestLimiterInBatches(SearcherContract):
    max_concurrent = 4

    def make_searcher(self):
        return ConcurrencyLimiter(AskTellSearch(Drifting), max_concurrent=4, batch=True)


class TestRepeater(SearcherContract):
    points_to_evaluate = [PRESETS[0]] * 3 + [PRESETS[1]] * 3

    def make_searcher(self):
        return Repeater(AskTellSearch(Drifting, points_to_evaluate=PRESETS), repeat=3)


class TestRepeaterWithALastOneCutShort(SearcherContract):
    metric, mode = ["loss", "accuracy"], ["min", "max"]
    num_samples = 23

    def make_searcher(self):
        return Repeater(AskTellSearch(Drifting), repeat=4, set_index=False)


class TestRepeaterAroundALimiter(SearcherContract):
    max_concurrent = 4

    def make_searcher(self):
        return Repeater(ConcurrencyLimiter(AskTellSearch(Drifting), 2), repeat=2)


class TestLimiterAroundARepeater(SearcherContract):
    max_concurrent = 5

    def make_searcher(self):
        return ConcurrencyLimiter(Repeater(AskTellSearch(Saving), repeat=2), 5, batch=True)


SPACE = {"x": SearcherContract.space["x"]}


class Plain(Searcher):
    """Keeps to all of the contract; those below do not."""

    end = 40

    def __init__(self):
        super().__init__()
        self.count = 0
        self.open = []
        self.best = None

    def set_search_properties(self, metric, mode, config, **spec):
        super().set_search_properties(metric, mode, config, **spec)
        return True

    def suggest(self, trial_id):
        if self.count >= self.end:
            return FINISHED
        self.count += 1
        self.open.append(trial_id)
        return {"x": 1 / self.count if self.best is None else self.best / 2}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.open.remove(trial_id)
        value = (result or {}).get("loss")
        if isinstance(value, float) and 0 < value < 1:
            self.best = value

    def adopt(self, trial_id, config):
        if config is None:
            self.open.remove(trial_id)

    def state_dict(self):
        return {"count": self.count, "open": list(self.open), "best": self.best}

    def load_state_dict(self, state):
        self.count, self.open, self.best = state["count"], list(state["open"]), state["best"]


class TestWhatTheBrokenOnesAreMadeOf(SearcherContract):
    space = SPACE

    def make_searcher(self):
        return Plain()


class Forgetful(Plain):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "best": None})


class Lending(Plain):
    def state_dict(self):
        return {**super().state_dict(), "open": self.open}


class Outside(Plain):
    def suggest(self, trial_id):
        return {"x": 5 + super().suggest(trial_id)["x"]}


class Leaking(Plain):
    """Counts a trial that failed as unfinished for ever."""

    def suggest(self, trial_id):
        return None if len(self.open) > 3 else super().suggest(trial_id)

    def on_trial_complete(self, trial_id, result=None, error=False):
        if not error:
            super().on_trial_complete(trial_id, result)


class Deaf(Leaking):
    """Keeps the place of a trial whose suggestion was taken back."""

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.open.remove(trial_id)

    def adopt(self, trial_id, config):
        pass


class Fickle(Plain):
    made = 0

    def __init__(self):
        super().__init__()
        Fickle.made += 1
        self.end = 3 + Fickle.made % 7


class Gullible(Plain):
    def on_trial_complete(self, trial_id, result=None, error=False):
        self.open.remove(trial_id)
        self.best = result["loss"] / 2


class Greedy(Plain):
    """Suggests five at a time, whatever its limit says."""


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Forgetful, "a_state_survives_json_and_goes_on_as_if_nothing_had_happened"),
        (Lending, "a_saved_state_does_not_change_afterwards"),
        (Outside, "suggestions_are_points_of_the_space"),
        (Leaking, "the_search_comes_to_its_end"),
        (Leaking, "undefined_results_do_no_harm"),
        (Deaf, "an_answer_may_be_taken_back"),
        (Fickle, "the_same_seed_gives_the_same_suggestions"),
        (Gullible, "undefined_results_do_no_harm"),
        (Greedy, "a_limit_holds"),
        (Greedy, "presets_come_first"),
    ],
)
def test_one_that_breaks_the_contract_is_found(kind, sentence):
    class Contract(SearcherContract):
        space = SPACE
        max_concurrent = 2
        points_to_evaluate = PRESETS[:1]

        def make_searcher(self):
            return kind()

    with pytest.raises((AssertionError, TypeError, KeyError)):
        getattr(Contract(), f"test_{sentence}")()
