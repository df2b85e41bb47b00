from __future__ import annotations

import builtins
import json
import logging
import pickle
import sys
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.random import SeedSequence
from optuna.trial import TrialState

from dasktune.errors import ConfigError
from dasktune.search import FINISHED, STOPPED_EARLY, OptunaSearch, SearchGenerator, SearchSpec
from dasktune.space import choice, sample_from, uniform

SPACE = {"x": uniform(0, 1), "y": uniform(-1, 1)}
SAMPLERS = {
    "tpe": lambda: None,
    "random": lambda: optuna.samplers.RandomSampler(seed=3),
    "cma": lambda: optuna.samplers.CmaEsSampler(seed=3, n_startup_trials=2),
    "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=3, population_size=4),
    "qmc": lambda: quasi_random(),
}


def quasi_random() -> Any:
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        return optuna.samplers.QMCSampler(seed=3, warn_independent_sampling=False)


def unpicklable() -> Any:
    sampler = optuna.samplers.RandomSampler()
    sampler.weights = lambda number: number
    return sampler


class Broken(optuna.samplers.RandomSampler):
    def after_trial(self, *arguments: Any) -> None:
        raise RuntimeError("broken")


def search_of(sampler: Any = None, **arguments: Any) -> OptunaSearch:
    seed = 7 if sampler is None else None
    given = {"space": SPACE, "metric": "loss", "mode": "min", "seed": seed, **arguments}
    return OptunaSearch(sampler=sampler, **given)


def result_of(config: dict[str, Any], step: int = 1) -> dict[str, Any]:
    return {"loss": (config["x"] - 0.3) ** 2 + abs(config["y"]), "training_iteration": step}


def ask_and_tell(search: OptunaSearch, numbers: range) -> list[Any]:
    """Keep four trials open."""
    asked: list[Any] = []
    for number in numbers:
        name = f"t_{number}"
        asked.append(search.suggest(name))
        search.on_trial_result(name, result_of(asked[-1]))
        due = number - 4
        if due >= 0:
            config = search.study.trials[due].params
            last = {**result_of(config, 2), STOPPED_EARLY: due % 3 == 0}
            search.on_trial_complete(f"t_{due}", last, error=due % 7 == 6)
    return asked


def states(search: OptunaSearch) -> list[str]:
    return [trial.state.name for trial in search.study.trials]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_one_that_is_restored_with_pending_trials_does_as_the_original(kind: str):
    whole = search_of(SAMPLERS[kind]())
    ask_and_tell(whole, range(16))
    state = json.loads(json.dumps(whole.state_dict()))
    wanted = ask_and_tell(whole, range(16, 28))
    restored = search_of(SAMPLERS[kind]())
    restored.load_state_dict(state)
    assert ask_and_tell(restored, range(16, 28)) == wanted
    assert states(restored) == states(whole)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_same_seed_gives_the_same_suggestions(kind: str):
    one, other = (ask_and_tell(search_of(SAMPLERS[kind]()), range(20)) for _ in range(2))
    assert one == other


def test_the_seed_of_the_experiment_counts_unless_there_is_one_of_its_own():
    def first(seed: int | None, experiment: int) -> Any:
        search = OptunaSearch(seed=seed)
        search.set_search_properties("loss", "min", SPACE, seed=SeedSequence(experiment))
        return search.suggest("t_0")

    assert first(None, 1) == first(None, 1) != first(None, 2)
    assert first(5, 1) == first(5, 2)


def test_a_searcher_that_is_set_up_again_restarts():
    search = search_of(optuna.samplers.RandomSampler(seed=1))
    search.set_search_properties("loss", "min", {})
    first = search.suggest("t_0")
    search.set_search_properties("loss", "min", {})
    assert search.suggest("t_0") == first
    assert len(search.study.trials) == 1


def test_what_is_learnt_beats_chance():
    # A searcher that learns nothing would draw what the random one with its seed draws.
    def late_losses(sampler: Any) -> float:
        search = search_of(sampler)
        ask_and_tell(search, range(30))
        return float(np.mean([result_of(trial.params)["loss"] for trial in search.study.trials[15:]]))

    assert late_losses(None) < 0.9 * late_losses(optuna.samplers.RandomSampler(seed=7))


def test_completed_trials_have_their_values_and_their_way_there():
    search = search_of()
    search.suggest("t_0")
    for step in (1, 2, 2, 3):
        search.on_trial_result("t_0", {"loss": 1 / step, "training_iteration": step})
    search.on_trial_result("t_0", {"loss": nan, "training_iteration": 4})
    search.on_trial_result("t_0", {"loss": 5.0})
    search.on_trial_complete("t_0", {"loss": np.float64(0.25), "training_iteration": 5})
    search.on_trial_complete("t_0", {"loss": 0.0})
    search.on_trial_result("t_0", {"loss": 0.0, "training_iteration": 6})
    (trial,) = search.study.trials
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.25)
    assert trial.intermediate_values == {1: 1.0, 2: 0.5, 3: 1 / 3}


def test_a_metric_may_be_a_path():
    search = search_of(metric="eval/loss")
    search.suggest("t_0")
    search.on_trial_complete("t_0", {"eval": {"loss": 0.5}})
    assert search.study.best_value == 0.5


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"loss": nan}, False),
        ({"loss": inf}, False),
        ({"loss": -inf}, False),
        ({"loss": "low"}, False),
        ({"accuracy": 1.0}, False),
        ({"loss": 0.5}, True),
        (None, False),
        (None, True),
    ],
)
def test_nothing_is_preferred_for_being_undefined(mode: Any, result: Any, error: bool):
    search = search_of(mode=mode)
    search.suggest("t_0")
    if result:
        search.on_trial_result("t_0", {**result, "training_iteration": 1})
    search.on_trial_complete("t_0", result, error)
    assert states(search) == ["FAIL"]
    for number in range(1, 15):
        config = search.suggest(f"t_{number}")
        assert isinstance(config, dict)
        search.on_trial_complete(f"t_{number}", {"loss": config["x"]})


@pytest.mark.parametrize(
    ("sampler", "stopped_trials", "state"),
    [
        (None, None, "PRUNED"),
        (None, "complete", "COMPLETE"),
        (optuna.samplers.CmaEsSampler(), None, "COMPLETE"),
        (optuna.samplers.RandomSampler(), "pruned", "PRUNED"),
    ],
)
def test_what_a_scheduler_ended_early_comes_as_the_sampler_needs_it(
    sampler: Any, stopped_trials: Any, state: str
):
    search = search_of(sampler, stopped_trials=stopped_trials)
    search.suggest("t_0")
    search.on_trial_result("t_0", {"loss": 0.9, "training_iteration": 1})
    last = {"loss": 0.75, "training_iteration": 3, STOPPED_EARLY: True}
    search.on_trial_complete("t_0", last)
    (trial,) = search.study.trials
    assert (trial.state.name, trial.value) == (state, 0.75)


def test_several_metrics_are_optimised_at_once():
    search = search_of(metric=["loss", "accuracy"], mode=["min", "max"])
    ends = [(0.5, 0.5), (0.4, 0.6), (0.9, 0.7), (nan, 0.9)]
    for number, (loss, accuracy) in enumerate(ends):
        search.suggest(f"t_{number}")
        told = {"loss": loss, "accuracy": accuracy, "training_iteration": 1}
        search.on_trial_result(f"t_{number}", told)
        search.on_trial_complete(f"t_{number}", {**told, STOPPED_EARLY: True})
    assert states(search) == ["COMPLETE"] * 3 + ["FAIL"]
    assert [trial.number for trial in search.study.best_trials] == [1, 2]


def test_one_mode_is_not_enough_for_several_metrics():
    search = search_of(metric=["loss", "accuracy"], mode=None)
    with pytest.raises(ConfigError, match="mode must be given once for each metric"):
        search.set_search_properties(None, "min", {})


def test_trials_that_break_a_constraint_are_not_the_best():
    search = search_of(constraints=lambda result: {"size": result["size"] - 10})
    for number, (loss, size) in enumerate([(0.5, 5), (0.1, 20), (0.2, nan)]):
        search.suggest(f"t_{number}")
        search.on_trial_complete(f"t_{number}", {"loss": loss, "size": size})
    assert states(search) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert search.study.best_trial.number == 0
    bad = search_of(constraints=lambda result: [1.0])
    bad.suggest("t_0")
    with pytest.raises(ConfigError, match=r"constraints\(result\) must be a dict of numbers"):
        bad.on_trial_complete("t_0", {"loss": 1.0})


def test_constraints_that_raise_make_a_trial_fail(caplog: pytest.LogCaptureFixture):
    search = search_of(constraints=lambda result: {"size": result["size"]})
    search.suggest("t_0")
    search.on_trial_complete("t_0", {"loss": 1.0})
    assert states(search) == ["FAIL"]
    assert "constraints(result) raised KeyError('size')" in caplog.text


def test_a_function_may_set_constraints_on_what_it_asks_for():
    def space(trial: Any) -> None:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("small", x - 2)

    search = search_of(space=space)
    search.suggest("t_0")
    search.on_trial_complete("t_0", {"loss": 1.0})
    assert search.study.best_value == 1.0


def test_pending_trials_are_known_to_the_sampler():
    search = search_of()
    for number in range(6):
        search.suggest(f"t_{number}")
    assert states(search) == ["RUNNING"] * 6
    search.on_trial_complete("t_3", {"loss": 1.0})
    assert [trial.number for trial in search.study.trials if trial.state.is_finished()] == [3]


def test_samplers_that_have_tried_everything_finish():
    sampler = optuna.samplers.GridSampler({"x": [0.1, 0.2], "y": [0.5]}, seed=1)
    search = search_of(sampler)
    seen = []
    for number in range(2):
        config = search.suggest(f"t_{number}")
        assert isinstance(config, dict)
        seen.append(config["x"])
        search.on_trial_complete(f"t_{number}", {"loss": 1.0})
    assert sorted(seen) == [0.1, 0.2]
    assert search.suggest("t_2") is FINISHED
    again = search_of(sampler)
    again.load_state_dict(search.state_dict())
    assert again.suggest("t_2") is FINISHED
    assert states(again) == ["COMPLETE"] * 2


def test_errors_of_a_sampler_are_not_taken_for_its_end():
    search = search_of(Broken(seed=1))
    search.suggest("t_0")
    with pytest.raises(RuntimeError, match="broken"):
        search.on_trial_complete("t_0", {"loss": 1.0})


def test_points_come_first_and_what_they_leave_open_is_sampled():
    points = [{"x": 0.5, "y": 0.25}, {"y": 1.0}, {}]
    search = search_of(points_to_evaluate=points)
    first, second, third, fourth = (search.suggest(f"t_{number}") for number in range(4))
    assert first == {"x": 0.5, "y": 0.25}
    # The bound itself is never drawn.
    assert isinstance(second, dict)
    assert second["y"] == np.nextafter(1.0, 0)
    assert third != fourth


def test_points_that_wait_are_not_taken_for_another_configuration():
    search = search_of(points_to_evaluate=[{"x": 0.5}, {"x": 0.75}])
    search.suggest("t_0")
    search.adopt("t_0", {"x": 0.25, "y": 0.0})
    again = search_of()
    again.load_state_dict(search.state_dict())
    config = again.suggest("t_1")
    assert isinstance(config, dict)
    assert config["x"] == 0.75
    assert [trial.params["x"] for trial in again.study.trials] == [0.5, 0.25, 0.75]


def test_points_whose_rewards_are_known_are_learnt_and_not_run():
    points = [{"x": 0.5, "y": 0.25}, {"x": 0.1, "y": 0.0}]
    search = search_of(points_to_evaluate=points, evaluated_rewards=[1.0, nan])
    search.suggest("t_0")
    assert states(search) == ["COMPLETE", "FAIL", "RUNNING"]
    assert search.study.best_params == points[0]


def test_evaluated_points_are_learnt_before_and_after_the_search_has_begun():
    search = search_of()
    point = {"x": 0.5, "y": 0.25}
    search.add_evaluated_point(point, 1.0)
    search.suggest("t_0")
    search.add_evaluated_point(point, 0.5, pruned=True, intermediate_values=[0.9, nan, 0.5])
    search.add_evaluated_point(point, 0.5, error=True)
    assert states(search) == ["COMPLETE", "RUNNING", "PRUNED", "FAIL"]
    assert search.study.trials[2].intermediate_values == {1: 0.9, 3: 0.5}
    with pytest.raises(ConfigError, match="value must be one number for each of 1 metrics"):
        search.add_evaluated_point(point, [1.0, 2.0])
    with pytest.raises(ConfigError, match="parameters must be a whole point of the space"):
        search.add_evaluated_point({"x": 0.5}, 1.0)
    with pytest.raises(ConfigError, match=r"the point at 'x' must be within \(0.0, 1.0\)"):
        search.add_evaluated_point({"x": 1.5, "y": 0.0}, 1.0)
    both = search_of(metric=["loss", "size"], mode=["min", "min"])
    both.add_evaluated_point(point, [1.0, 2.0], intermediate_values=[3.0])
    both.suggest("t_0")
    assert both.study.trials[0].values == [1.0, 2.0]


def test_evaluated_points_of_a_function_are_learnt_by_running_it():
    def space(trial: Any) -> dict[str, Any]:
        depth = trial.suggest_int("net/depth", 1, 3)
        return {"net/width": trial.suggest_float("width", 0, depth)}

    search = search_of(space=space)
    search.add_evaluated_point({"net": {"depth": 2}, "width": 1.5}, 0.5)
    config = search.suggest("t_0")
    assert isinstance(config, dict)
    assert config["net"]["width"] == config["width"]
    assert search.study.best_params == {"net/depth": 2, "width": 1.5}


def test_optuna_gets_a_trial_with_another_configuration_under_that():
    search = search_of()
    search.suggest("t_0")
    search.adopt("t_0", {"x": 0.25, "y": 0.5, "constant": 3})
    search.adopt("t_1", {"x": 0.75, "y": "strange"})
    assert states(search) == ["FAIL", "RUNNING", "RUNNING"]
    search.on_trial_complete("t_0", {"loss": 0.1})
    search.on_trial_complete("t_1", {"loss": 0.2})
    assert search.study.best_params == {"x": 0.25, "y": 0.5}
    assert search.study.trials[2].params["x"] == 0.75
    search.suggest("t_2")
    search.adopt("t_2", None)
    assert states(search)[-1] == "FAIL"
    search.on_trial_complete("t_2", {"loss": 0.2})


def test_a_function_that_raises_is_named_and_leaves_no_trial_behind():
    search = search_of(space=lambda trial: 1 / 0)
    with pytest.raises(ConfigError, match=r"space\(trial\) must not raise, got ZeroDivisionError"):
        search.suggest("t_0")
    assert states(search) == ["FAIL"]
    with pytest.raises(ConfigError, match=r"space\(trial\) must be a dict or None, got 3"):
        search_of(space=lambda trial: 3).suggest("t_0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": "tpe"}, "sampler must be an Optuna sampler"),
        ({"stopped_trials": "failed"}, "stopped_trials must be 'pruned' or 'complete'"),
        ({"constraints": 3}, "constraints must be callable"),
        ({"evaluated_rewards": [1.0]}, "evaluated_rewards must be one for each of points_to"),
        ({"storage": "sqlite:///a.db"}, "storage must be left out, got .*part of the snapshots"),
        ({"mode": "up"}, "mode must be 'min' or 'max'"),
        ({"space": 3}, "space must be a dict with domains, or a function"),
        ({"sampler": unpicklable()}, "sampler must be picklable"),
    ],
)
def test_arguments_that_break_their_rules_are_named(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        OptunaSearch(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": None, "mode": None}, "metric must be given"),
        ({"mode": None}, "mode must be given"),
        ({"space": None}, "space must be given"),
    ],
)
def test_one_that_lacks_something_says_what(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        search_of(**arguments).suggest("t_0")


def spec_of(space: Any) -> SearchSpec:
    return SearchSpec(space=space, num_samples=3, metric="loss", mode="min", seed=SeedSequence(1))


@pytest.mark.parametrize(
    ("own", "space", "message"),
    [
        (SPACE, {"z": uniform(0, 1)}, "param_space must be made of plain values"),
        (None, {"z": {"grid_search": [1, 2]}}, "use choice"),
        (None, {}, "param_space must be a dict with at least one domain, got {}"),
        (None, {"z": 1}, "param_space must be a dict with at least one domain"),
    ],
)
def test_a_space_that_is_given_twice_or_not_at_all_is_refused(own: Any, space: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        SearchGenerator(OptunaSearch(own)).setup(spec_of(space))


def test_plain_values_are_laid_under_and_stay_out_of_the_tag():
    generator = SearchGenerator(OptunaSearch(seed=1))
    generator.setup(spec_of({"net": {"width": choice([8]), "bias": True}, "epochs": 3}))
    suggestion = generator.next_trial("t_0")
    assert suggestion.config == {"net": {"width": 8, "bias": True}, "epochs": 3}
    assert suggestion.tag == "0_width=8"


def test_a_seed_beside_a_sampler_is_said_to_be_of_no_use(caplog: pytest.LogCaptureFixture):
    search_of(optuna.samplers.RandomSampler(seed=1), seed=3)
    assert "seed=3 is not used: the sampler has its own" in caplog.text


def test_optuna_says_nothing_and_its_logging_is_as_before(caplog: pytest.LogCaptureFixture):
    optuna.logging.enable_propagation()
    verbosity = optuna.logging.get_verbosity()
    with caplog.at_level(logging.INFO, logger="optuna"):
        search = search_of()
        ask_and_tell(search, range(20))
        assert not caplog.records
        optuna.create_study()
        assert caplog.records
    optuna.logging.disable_propagation()
    assert optuna.logging.get_verbosity() == verbosity


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install 'optuna>=5'"):
        OptunaSearch(SPACE)


def test_of_a_gaussian_process_only_that_is_saved_which_the_next_fit_starts_from():
    search = search_of(optuna.samplers.GPSampler(seed=1))
    search.suggest("t_0")
    starts = {"inverse_squared_lengthscales": [1.0], "kernel_scale": 2.0, "noise_var": 3.0}
    fitted = SimpleNamespace(**starts, _squared_X_diff=bytes(10**6))
    search.study.sampler._gprs_cache_list = [fitted]
    search.study.sampler._constraints_gprs_cache_list = None
    state = search.state_dict()
    assert len(state["study"]) < 10**5
    restored = search_of(optuna.samplers.GPSampler(seed=1))
    restored.load_state_dict(state)
    assert [vars(one) for one in restored.study.sampler._gprs_cache_list] == [starts]
    del search.study.sampler._gprs_cache_list
    assert len(search.state_dict()["study"]) < 10**5


@pytest.mark.parametrize("sampler", [None, optuna.samplers.RandomSampler(seed=4)])
def test_another_sampler_continues_with_the_trials_of_the_saved_one(sampler: Any):
    before, after = search_of(SAMPLERS["random"]()), search_of(sampler)
    ask_and_tell(before, range(6))
    after.load_state_dict(before.state_dict())
    assert states(after) == states(before)
    assert after.suggest("t_6") != before.suggest("t_6")
    assert type(after.study.sampler) is (optuna.samplers.TPESampler if sampler is None else type(sampler))


class OfScript(optuna.samplers.RandomSampler):
    """Stands for a class of the script."""


def test_a_sampler_of_the_script_is_the_same_after_a_restore(monkeypatch: pytest.MonkeyPatch):
    before, stored = (search_of(OfScript(seed=3)) for _ in range(2))
    ask_and_tell(before, range(6))
    state = before.state_dict()
    # The script runs again, or the stored class was pickled by value.
    again = type("OfScript", (optuna.samplers.RandomSampler,), {"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "OfScript", again)
    stored.load_state_dict(state)
    assert states(stored) == states(before)
    assert stored.suggest("t_6") == before.suggest("t_6")


def test_one_that_has_not_begun_has_no_study_to_save():
    search = search_of()
    state = search.state_dict()
    assert state == {}
    search.load_state_dict(state)
    assert search.study is None
    assert pickle.loads(pickle.dumps(search)).suggest("t_0") == search.suggest("t_0")


def test_the_seed_counts_for_what_functions_draw_too():
    def first(seed: int) -> Any:
        space = {**SPACE, "noise": sample_from(lambda: uniform(0, 1))}
        return search_of(space=space, seed=seed).suggest("t_0")["noise"]

    assert first(1) == first(1) != first(2)
