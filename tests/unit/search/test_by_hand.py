"""Searchers without an experiment, as Ray Tune's users use them: suggest, save, restore."""

from __future__ import annotations

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import (
    AskTell,
    AskTellSearch,
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
from dasktune.space import choice, grid_search, uniform

SPACE = {"model": {"x": uniform(-1, 1), "kind": "mlp"}}
GOAL = {"metric": "loss", "mode": "min"}
EARLIER = [({"model": {"x": number / 10}}, number % 4) for number in range(10)]
NEEDS = {
    "gp": "scipy",
    "warm-start": "sklearn",
    "hyperopt": "hyperopt",
    "optuna": "optuna",
    "bayesopt": "bayes_opt",
}


class Counting(AskTell):
    def __init__(self, domains, seed):
        self.count, self.heard = 0, []

    def ask(self):
        self.count += 1
        return {"model/x": self.count / 100}

    def tell(self, params, loss):
        self.heard.append(loss)


MAKERS = {
    "bohb": lambda space, **goal: TuneBOHB(space, seed=1, **goal),
    "warm-start": lambda space, **goal: WarmStart([EARLIER], space, seed=1, **goal),
    "gp": lambda space, **goal: GaussianProcessSearch(space, seed=1, n_initial_points=2, **goal),
    "quasi-random": lambda space, **goal: QuasiRandomSearch(space, seed=1, **goal),
    "ask-tell": lambda space, **goal: AskTellSearch(Counting, space=space, seed=1, **goal),
    "optuna": lambda space, **goal: OptunaSearch(space, seed=1, **goal),
    "hyperopt": lambda space, **goal: HyperOptSearch(space, random_state_seed=1, **goal),
    "bayesopt": lambda space, **goal: BayesOptSearch(space, random_state=1, **goal),
}
FAST = ["bohb", "gp", "warm-start", "quasi-random", "ask-tell", "optuna"]
#: The component tests of the warm start restore it, which takes longer.
RESTORED = [kind for kind in FAST if kind != "warm-start"]


def made(kind, space=SPACE, **goal):
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    return MAKERS[kind](space, **(goal or GOAL))


def trained(searcher, trials):
    """Suggest and evaluate; return the suggestions."""
    found = []
    for trial_id in trials:
        found.append(searcher.suggest(trial_id))
        searcher.on_trial_complete(trial_id, {"loss": found[-1]["model"]["x"] ** 2, "training_iteration": 1})
    return found


def begin(searcher, space=None):
    goal = (None, None) if searcher.metric else ("loss", "min")
    searcher.set_search_properties(*goal, space or {}, seed=SeedSequence(5), num_samples=100)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_searcher_with_all_arguments_suggests_by_hand(kind):
    (config,) = trained(made(kind), ["a"])
    assert -1 <= config["model"]["x"] <= 1


@pytest.mark.parametrize("kind", FAST)
def test_a_searcher_without_a_space_names_what_is_missing(kind):
    with pytest.raises(ConfigError, match="space must be given"):
        made(kind, None).suggest("a")


@pytest.mark.parametrize("kind", ["bohb", "gp", "warm-start", "ask-tell", "optuna"])
def test_a_searcher_without_a_metric_names_what_is_missing(kind):
    with pytest.raises(ConfigError, match="metric"):
        MAKERS[kind](SPACE).suggest("a")


@pytest.mark.parametrize("kind", RESTORED)
def test_a_restored_searcher_suggests_what_the_saved_one_would(kind, tmp_path):
    first, path = made(kind), str(tmp_path / "searcher.json")
    trained(first, "abc")
    first.save(path)
    second = made(kind)
    second.restore(path)
    assert trained(second, "def") == trained(first, "def")


@pytest.mark.parametrize("kind", RESTORED)
def test_a_searcher_restored_before_its_experiment_continues_the_search(kind, tmp_path):
    first, path = made(kind, None), str(tmp_path / "searcher.json")
    begin(first, SPACE)
    trained(first, "abc")
    first.save(path)
    second = made(kind, None)
    second.restore(path)
    begin(second, SPACE)
    assert trained(second, "def") == trained(first, "def")


def learned(searcher):
    """Return all that a searcher has learned, in a form that can be compared."""
    if isinstance(searcher, OptunaSearch):
        return [(trial.params, trial.values) for trial in searcher.study.trials]
    return searcher.state_dict()


@pytest.mark.parametrize("space", [SPACE, None])
@pytest.mark.parametrize("kind", ["bohb", "gp", "ask-tell", "optuna"])
def test_points_that_are_added_to_a_restored_searcher_are_learned_too(kind, space, tmp_path):
    first, path = made(kind), str(tmp_path / "searcher.json")
    begin(first)
    trained(first, "ab")
    first.save(path)
    found = []
    for is_early in (True, False):
        second = made(kind, space)
        # The restored state replaces what was added before.
        second.add_evaluated_point({"model": {"x": 0.75, "kind": "mlp"}}, 0.5)
        second.restore(path)
        if is_early:
            second.add_evaluated_point({"model": {"x": 0.25, "kind": "mlp"}}, 0.5)
        begin(second, None if space else SPACE)
        if not is_early:
            second.add_evaluated_point({"model": {"x": 0.25, "kind": "mlp"}}, 0.5)
        found.append(learned(second))
    assert found[0] == found[1]
    assert found[0] != learned(first)


def test_the_log_of_an_optimiser_is_only_that_of_its_own_experiment():
    searcher = made("ask-tell")
    begin(searcher)
    trained(searcher, "ab")
    begin(searcher)
    trained(searcher, "c")
    assert searcher.state_dict()["log"] == [["ask", "c", {"model/x": 0.01}], ["tell", "c", 0.01**2]]


@pytest.mark.parametrize(
    "wrap", [lambda inner: ConcurrencyLimiter(inner, 2), lambda inner: Repeater(inner, 2)]
)
def test_unfinished_trials_of_the_saved_search_hold_back_no_new_trial(wrap, tmp_path):
    first, path = wrap(TuneBOHB(SPACE, max_concurrent=2, **GOAL)), str(tmp_path / "searcher.json")
    begin(first)
    assert first.suggest("a")
    assert first.suggest("b")
    first.save(path)
    second = wrap(TuneBOHB(SPACE, max_concurrent=2, **GOAL))
    second.restore(path)
    begin(second)
    assert second.suggest("c")
    assert second.suggest("d")


def test_a_restored_optimiser_learns_that_unfinished_trials_failed(tmp_path):
    made_optimizers, path = [], str(tmp_path / "searcher.json")

    def make(domains, seed):
        made_optimizers.append(Counting(domains, seed))
        return made_optimizers[-1]

    first = AskTellSearch(make, space=SPACE, **GOAL)
    first.suggest("a")
    first.save(path)
    second = AskTellSearch(make, space=SPACE, **GOAL)
    second.restore(path)
    begin(second)
    assert made_optimizers[-1].heard == [None]


def test_a_restored_study_counts_unfinished_trials_as_failed(tmp_path):
    pytest.importorskip("optuna")
    first, path = OptunaSearch(SPACE, seed=1, **GOAL), str(tmp_path / "searcher.json")
    first.suggest("a")
    first.save(path)
    second = OptunaSearch(SPACE, seed=1, **GOAL)
    second.restore(path)
    begin(second)
    assert [trial.state.name for trial in second.study.trials] == ["FAIL"]


class Numbered(Searcher):
    """A searcher of a user."""

    def __init__(self):
        super().__init__(**GOAL)
        self.number = 0

    def suggest(self, trial_id):
        self.number += 1
        return {"number": self.number}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def test_a_searcher_of_the_user_is_saved_and_restored(tmp_path):
    first, path = Numbered(), str(tmp_path / "searcher.json")
    assert [first.suggest("a"), first.suggest("b")] == [{"number": 1}, {"number": 2}]
    first.save(path)
    second = Numbered()
    second.restore(path)
    assert second.suggest("c") == {"number": 3}


@pytest.mark.parametrize("text", ["", "[]", '{"searcher": "TuneBOHB", "state": {}}', '{"state": {}}'])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    path = tmp_path / "searcher.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"a file that QuasiRandomSearch\.save\(\) has written"):
        QuasiRandomSearch(SPACE).restore(str(path))


@pytest.mark.parametrize(
    "cls", [TuneBOHB, WarmStart, QuasiRandomSearch, HyperOptSearch, BayesOptSearch, OptunaSearch]
)
def test_a_space_is_converted_to_what_the_constructor_takes(cls):
    space = {"lr": uniform(0, 1), "model": {"act": choice(["a"]), "depth": 3}, "data": "digits"}
    assert cls.convert_search_space(space) == {"lr": space["lr"], "model": {"act": space["model"]["act"]}}
    assert cls.convert_search_space(space, join=True) == space
    with pytest.raises(ConfigError, match=r"use choice\(\) instead of grid_search\(\)"):
        cls.convert_search_space({"x": grid_search([1])})
