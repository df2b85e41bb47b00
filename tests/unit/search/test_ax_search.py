"""Search with Ax, the real one."""

from __future__ import annotations

import json
import sys
from math import inf, nan

import pytest
from numpy.random import SeedSequence

from dasktune.errors import ConfigError
from dasktune.search import FINISHED
from dasktune.search.ax import AxSearch
from dasktune.search.ax.ax_client import experiment_of
from dasktune.space import choice, grid_search, loguniform, randint, randn, uniform

pytest.importorskip("ax")

# It, BoTorch and torch warn of what is deprecated of their own, and of data that are hard to fit.
pytestmark = pytest.mark.filterwarnings("ignore")

SPACE = {"x": uniform(0, 1), "y": uniform(0, 1)}


def made(param_space=SPACE, **arguments):
    goal = {} if "ax_client" in arguments else {"metric": "loss", "mode": "min"}
    searcher = AxSearch(**{**goal, **arguments})
    plain = {} if "ax_client" in arguments else param_space
    searcher.set_search_properties(None, None, plain, seed=SeedSequence(0))
    return searcher


def lived(searcher, count, result, start=0):
    """Return the suggestions for so many trials that run one after the other."""
    configs = []
    for number in range(start, start + count):
        configs.append(searcher.suggest(f"t{number}"))
        searcher.on_trial_complete(f"t{number}", result(configs[-1]))
    return configs


def statuses(searcher):
    return [trial.status.name for trial in experiment_of(searcher.client).trials.values()]


def means(searcher, metric):
    data = experiment_of(searcher.client).lookup_data().df
    return data[data["metric_name"] == metric]["mean"].tolist()


def client(*, aimed=True, planned=False, seed=None):
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    mine = Client(random_seed=seed)
    mine.configure_experiment(
        [
            RangeParameterConfig("model/lr", (1e-3, 1.0), "float", scaling="log"),
            ChoiceParameterConfig("kind", ["a", "b"], "str", is_ordered=False),
        ]
    )
    if aimed:
        mine.configure_optimization("-loss, eval/acc", ["latency <= 0.5"])
    if planned:
        mine.configure_generation_strategy(initialization_budget=3, initialization_random_seed=1)
    return mine


# The first ones are Sobol's, the last ones of a model.
def test_points_keep_to_linear_constraints_and_come_near_the_best():
    searcher = made(parameter_constraints=["x + y <= 1"], initialization_budget=4)
    configs = lived(searcher, 8, lambda c: {"loss": (c["x"] - 0.9) ** 2 + (c["y"] - 0.9) ** 2})
    assert all(c["x"] + c["y"] <= 1 + 1e-6 for c in configs)
    assert min((c["x"] - 0.5) ** 2 + (c["y"] - 0.5) ** 2 for c in configs[4:]) < 0.05


def test_constraints_reach_into_the_space_by_path():
    space = {"a": {"x": uniform(0, 1), "y": uniform(0, 1)}}
    searcher = made(space, parameter_constraints=["a/x + a/y <= 0.5"])
    configs = lived(searcher, 4, lambda c: {"loss": c["a"]["x"]})
    assert all(c["a"]["x"] + c["a"]["y"] <= 0.5 + 1e-6 for c in configs)


def test_what_is_inside_an_option_is_there_with_it_only():
    inner = {"lr": loguniform(1e-3, 1), "layers": randint(1, 5)}
    space = {"model": choice(["plain", inner, {"depth": uniform(0, 1)}])}
    searcher = made(space, initialization_budget=6)
    configs = lived(searcher, 8, lambda c: {"loss": float(isinstance(c["model"], str))})
    inside = {"plain" if c["model"] == "plain" else tuple(sorted(c["model"])) for c in configs}
    assert inside == {"plain", ("layers", "lr"), ("depth",)}
    known = [trial.arm.parameters for trial in experiment_of(searcher.client).trials.values()]
    assert all(("model[1]/lr" in one) == (one["model"] == 1) for one in known)
    assert all(isinstance(c["model"]["layers"], int) for c in configs if "layers" in c["model"])


def test_several_goals_come_as_they_were_reported():
    searcher = made(metric=["loss", "eval/acc"], mode=["min", "max"])
    lived(searcher, 3, lambda c: {"loss": c["x"], "eval": {"acc": c["y"]}})
    assert str(experiment_of(searcher.client).optimization_config.objective.expression) == ("-loss, eval/acc")
    known = [trial.arm.parameters for trial in experiment_of(searcher.client).trials.values()]
    assert means(searcher, "loss") == pytest.approx([one["x"] for one in known])
    assert means(searcher, "eval/acc") == pytest.approx([one["y"] for one in known])


def test_a_metric_that_is_constrained_is_passed_to_the_search():
    searcher = made(outcome_constraints=["memory <= 0.3"], initialization_budget=4)
    # The best one lies where it is not allowed.
    configs = lived(searcher, 9, lambda c: {"loss": 1 - c["x"], "memory": c["x"] + 0 * c["y"]})
    assert means(searcher, "memory") == pytest.approx([c["x"] for c in configs])
    assert min(abs(c["x"] - 0.3) for c in configs[5:]) < 0.1


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"loss": 1.0}, False),
        ({"loss": 1.0, "memory": nan}, False),
        ({"loss": inf, "memory": 1.0}, False),
        ({"memory": 1.0}, False),
        ({"loss": 1.0, "memory": 1.0}, True),
        (None, False),
    ],
)
def test_a_trial_without_a_value_of_each_metric_has_failed(result, error):
    searcher = made(outcome_constraints=["memory <= 0.3"])
    searcher.suggest("a")
    searcher.on_trial_complete("a", result, error=error)
    searcher.on_trial_complete("a", {"loss": 1.0, "memory": 1.0})
    assert statuses(searcher) == ["FAILED"]


def test_presets_are_learnt_unless_they_break_a_rule():
    presets = [{"x": 0.25}, {"x": 0.9, "y": 0.9}, {"x": 2.0, "y": 0.1}]
    searcher = made(points_to_evaluate=presets, parameter_constraints=["x + y <= 1"])
    configs = lived(searcher, 4, lambda c: {"loss": c["x"]})
    assert [c["x"] for c in configs[:3]] == [0.25, 0.9, 2.0]
    learnt = [trial.arm.parameters["x"] for trial in experiment_of(searcher.client).trials.values()]
    assert learnt[0] == 0.25
    assert not {0.9, 2.0} & {*learnt}


def test_evaluated_points_are_learnt_though_not_all_metrics_are_known():
    searcher = made(outcome_constraints=["memory <= 0.3"])
    searcher.add_evaluated_point({"x": 0.5, "y": 0.25}, 0.7)
    assert statuses(searcher) == ["COMPLETED"]
    assert (means(searcher, "loss"), means(searcher, "memory")) == ([0.7], [])


def test_a_search_that_has_tried_everything_waits_for_those_that_run_and_finishes():
    searcher = made({"k": choice(["a", "b"])})
    assert {searcher.suggest("a")["k"], searcher.suggest("b")["k"]} == {"a", "b"}
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a", {"loss": 1.0})
    searcher.on_trial_complete("b", {"loss": 2.0})
    assert searcher.suggest("c") is FINISHED


NATIVE = [
    {"name": "model/lr", "type": "range", "bounds": [1e-3, 1.0], "log_scale": True},
    {"name": "layers", "type": "range", "bounds": [1, 4]},
    {"name": "kind", "type": "choice", "values": ["u", "v"], "dependents": {"u": ["layers"]}},
    {"name": "epochs", "type": "fixed", "value": 3},
]


def test_parameters_may_be_written_as_dicts():
    searcher = made({}, space=NATIVE, points_to_evaluate=[{"model/lr": 0.125}])
    configs = lived(searcher, 6, lambda c: {"loss": c["model"]["lr"]})
    assert configs[0]["model"] == pytest.approx({"lr": 0.125})
    assert all(1e-3 <= c["model"]["lr"] <= 1 and c["epochs"] == 3 for c in configs)
    assert {c["kind"] for c in configs} == {"u", "v"}
    assert all(("layers" in c) == (c["kind"] == "u") for c in configs)
    assert {type(c["layers"]) for c in configs if "layers" in c} == {int}


def test_parameters_may_be_configs_of_ax():
    from ax.api.configs import DerivedParameterConfig, RangeParameterConfig

    space = [
        RangeParameterConfig("x", (0.0, 1.0), "float", step_size=0.25),
        RangeParameterConfig("y", (0.0, 1.0), "float"),
        DerivedParameterConfig("z", "2.0 * y", "float"),
    ]
    presets = [{"x": 0.75, "y": 0.5}]
    searcher = made({}, space=space, points_to_evaluate=presets)
    configs = lived(searcher, 3, lambda c: {"loss": c["x"]})
    assert configs[0] == {"x": 0.75, "y": 0.5, "z": 1.0}
    assert {c["x"] for c in configs} <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(c["z"] == pytest.approx(2 * c["y"]) for c in configs)


def test_a_client_of_the_users_is_copied_and_says_what_is_optimised():
    mine = client(planned=True)
    searcher = made(ax_client=mine)
    assert (searcher.metric, searcher.mode) == (["loss", "eval/acc"], ["min", "max"])
    result = {"loss": 0.5, "eval/acc": 0.25, "latency": 0.1}
    configs = lived(searcher, 3, lambda c: result)
    assert all({*c} == {"model", "kind"} and {*c["model"]} == {"lr"} for c in configs)
    assert means(searcher, "eval/acc") == [0.25] * 3
    assert means(searcher, "latency") == [0.1] * 3
    assert not experiment_of(mine).trials


def test_what_a_client_does_not_say_the_searcher_says():
    from ax.api.client import Client

    aimless = made(ax_client=client(aimed=False), metric="loss", mode="max", outcome_constraints=["m >= 1"])
    lived(aimless, 2, lambda c: {"loss": 0.5, "m": 2.0})
    assert (means(aimless, "loss"), means(aimless, "m")) == ([0.5, 0.5], [2.0, 2.0])
    blank = AxSearch(SPACE, "loss", "min", ax_client=Client(), initialization_budget=2)
    blank.set_search_properties(None, None, {}, seed=SeedSequence(0))
    assert {*blank.suggest("a")} == {"x", "y"}


def test_what_a_client_knows_already_counts():
    mine = client(planned=True)
    for _ in range(2):
        [(index, _)] = mine.get_next_trials(1).items()
        mine.complete_trial(index, {"loss": 1.0, "eval/acc": 0.5, "latency": 0.1})
    searcher = made(ax_client=mine)
    searcher.suggest("a")
    assert statuses(searcher) == ["COMPLETED", "COMPLETED", "RUNNING"]


def test_a_client_of_the_older_interface_will_do():
    from ax.service.ax_client import AxClient, ObjectiveProperties

    mine = AxClient(verbose_logging=False)
    mine.create_experiment(
        parameters=[{"name": "x", "type": "range", "bounds": [0.0, 1.0]}],
        objectives={"loss": ObjectiveProperties(minimize=True)},
    )
    searcher = made(ax_client=mine)
    assert (searcher.metric, searcher.mode) == ("loss", "min")
    lived(searcher, 2, lambda c: {"loss": c["x"]})
    assert statuses(searcher) == ["COMPLETED"] * 2


@pytest.mark.parametrize("kind", ["native", "client", "constrained"])
def test_one_that_is_restored_with_pending_trials_does_as_the_original(kind):
    def searcher():
        if kind == "client":
            return made(ax_client=client(planned=True))
        if kind == "native":
            return made({}, space=NATIVE, points_to_evaluate=[{"model/lr": 0.125}])
        return made(outcome_constraints=["latency <= 0.3"], initialization_budget=6)

    def result(config):
        return {"loss": len(str(config)), "eval/acc": 0.5, "latency": 0.1}

    whole = searcher()
    lived(whole, 2, result)
    pending = [whole.suggest("p0"), whole.suggest("p1")]
    other = searcher()
    other.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for one in (whole, other):
        one.on_trial_complete("p1", result(pending[1]))
    assert lived(other, 3, result, start=5) == lived(whole, 3, result, start=5)


@pytest.mark.parametrize(
    ("param_space", "arguments", "sentence"),
    [
        ({"x": grid_search([1])}, {}, "without grid_search"),
        ({"x": randn()}, {}, "must be a domain that Ax can search"),
        ({"x": 1}, {}, "param_space must be a dict with at least one domain"),
        (SPACE, {"parameter_constraints": ["z <= 1"]}, "accepted by Ax, got `z` does not"),
        (SPACE, {"parameter_constraints": "x <= 1"}, "parameter_constraints must be a list of"),
        (SPACE, {"outcome_constraints": ["loss <= 1"]}, "accepted by Ax, got Outcome"),
        (SPACE, {"outcome_constraints": ["m is small"]}, "accepted by Ax"),
        (SPACE, {"outcome_constraints": ["m <= 0.9 * baseline"]}, "baseline without a value"),
        (SPACE, {"metric": "gamma"}, "accepted by Ax, got .*gamma"),
        (SPACE, {"verbose_logging": False}, "must be its own or one of .*'method'"),
        (SPACE, {"method": "slow"}, "accepted by Ax"),
        ({}, {"space": []}, "space must be a list with at least one parameter"),
        ({}, {"space": ["x"]}, "must be a dict with name and type, or a parameter config"),
        ({}, {"space": [{"name": "x", "type": "log"}]}, "type of 'x' must be one of"),
        ({}, {"space": [{**NATIVE[1], "digits": 3}]}, "'layers' must be a dict with .*got .*digits"),
        ({}, {"space": [{"name": "x", "type": "range"}]}, "must be a dict with name .*KeyError"),
        ({}, {"space": [NATIVE[1], NATIVE[1]]}, "a name each, got ..layers"),
        ({}, {"space": NATIVE, "points_to_evaluate": [{"z": 1}]}, "points of the space.*'z'"),
        ({}, {"space": NATIVE, "points_to_evaluate": [{"layers": 9}]}, "points of the space"),
    ],
)
def test_what_ax_does_not_understand_is_refused_before_a_trial_starts(param_space, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        made(param_space, **arguments)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("space", SPACE),
        ("metric", "loss"),
        ("mode", "min"),
        ("parameter_constraints", ["x <= 1"]),
        ("outcome_constraints", ["m <= 1"]),
        ("initialization_budget", 3),
    ],
)
def test_what_a_client_says_is_not_said_again(name, given):
    with pytest.raises(ConfigError, match=r"must be left out, got .*The client in ax_client already"):
        AxSearch(ax_client=client(planned=True), **{name: given})


def test_what_is_no_client_is_refused():
    with pytest.raises(ConfigError, match="ax_client must be a client of Ax"):
        AxSearch(ax_client="mine")


def test_the_experiment_may_not_contradict_the_client():
    searcher = AxSearch(ax_client=client(planned=True))
    with pytest.raises(ConfigError, match="Set metric in one place"):
        searcher.set_search_properties("other", "min", {}, seed=SeedSequence(0))


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ax", None)
    with pytest.raises(ImportError, match=r"pip install 'ax-platform>=1\.3'"):
        AxSearch()
