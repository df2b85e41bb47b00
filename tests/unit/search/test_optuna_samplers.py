"""Every sampler that comes with Optuna proposes, gets all ends, and continues after a restart."""

from __future__ import annotations

import json
import warnings
from math import inf, nan

import pytest
from numpy.random import SeedSequence

from dasktune.search import FINISHED, STOPPED_EARLY, OptunaSearch
from dasktune.space import choice, randint, uniform

optuna = pytest.importorskip("optuna")

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

WIDE = {"x": uniform(0, 1), "k": randint(0, 100)}
FEW = {"k": randint(0, 4), "kind": choice(["a", "b"])}
ALL = {(k, kind) for k in range(4) for kind in "ab"}


def sampler_of(name):
    samplers = optuna.samplers
    if name == "PartialFixedSampler":
        return samplers.PartialFixedSampler({"k": 7}, samplers.TPESampler(seed=1))
    if name == "GridSampler":
        # A choice is known by its options' numbers where they are no plain values; these are.
        return samplers.GridSampler({"k": [0, 1, 2, 3], "kind": ["a", "b"]}, seed=1)
    few = {
        "TPESampler": {"n_startup_trials": 4},
        "GPSampler": {"n_startup_trials": 4},
        "CmaEsSampler": {"n_startup_trials": 3},
        "NSGAIISampler": {"population_size": 4},
        "NSGAIIISampler": {"population_size": 4},
        "QMCSampler": {"warn_asynchronous_seeding": False},
    }
    return getattr(samplers, name)(seed=1, **few.get(name, {}))


#: What of it needs a package of its own.
NEEDED = {"CmaEsSampler": "cmaes", "GPSampler": "torch", "QMCSampler": "scipy"}
ENDLESS = [
    "TPESampler",
    "GPSampler",
    "CmaEsSampler",
    "NSGAIISampler",
    "NSGAIIISampler",
    "QMCSampler",
    "RandomSampler",
    "PartialFixedSampler",
]
ENDING = ["BruteForceSampler", "GridSampler"]


def search_of(name, space):
    pytest.importorskip(NEEDED.get(name, "optuna"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        search = OptunaSearch(sampler=sampler_of(name), metric="loss", mode="min")
    search.set_search_properties(None, None, space, seed=SeedSequence(0))
    return search


#: How trials end, one after the other.
ENDS = [
    ({"loss": 1.0, "training_iteration": 1}, False),
    (None, True),
    ({"loss": 0.5, "training_iteration": 3, STOPPED_EARLY: True}, False),
    ({"loss": nan, "training_iteration": 1}, False),
    ({"loss": 0.25, "training_iteration": 1}, False),
    ({"loss": -inf, "training_iteration": 1}, False),
    ({"training_iteration": 1}, False),
]


def asked(search, numbers, *, pending=3):
    """Keep some trials open; return all configurations up to the end."""
    configs = []
    for number in numbers:
        config = search.suggest(f"t{number}")
        configs.append(config)
        if config is FINISHED:
            return configs
        if number >= pending:
            result, error = ENDS[number % len(ENDS)]
            search.on_trial_complete(f"t{number - pending}", result, error=error)
    return configs


def test_no_sampler_of_optuna_is_forgotten():
    kinds = {name for name in optuna.samplers.__all__ if name.endswith("Sampler")}
    assert {*ENDLESS, *ENDING} == kinds - {"BaseSampler", "BaseGASampler"}


@pytest.mark.parametrize("name", ENDLESS)
def test_whatever_becomes_of_trials_it_suggests_and_after_a_restart_alike(name):
    whole = search_of(name, WIDE)
    configs = asked(whole, range(10))
    assert all(0 <= c["x"] <= 1 and 0 <= c["k"] < 100 for c in configs)
    assert len({c["x"] for c in configs}) == len(configs)
    assert {c["k"] for c in configs} == {7} or name != "PartialFixedSampler"
    other = search_of(name, WIDE)
    other.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert asked(other, range(10, 16)) == asked(whole, range(10, 16))
    states = [trial.state.name for trial in whole.study.trials]
    assert states.count("RUNNING") == 3
    assert {"COMPLETE", "FAIL"} <= {*states}
    values = [trial.value for trial in whole.study.get_trials(states=(COMPLETE,))]
    assert {*values} <= {1.0, 0.5, 0.25}


COMPLETE = optuna.trial.TrialState.COMPLETE


@pytest.mark.parametrize("pending", [0, 3])
@pytest.mark.parametrize("name", ENDING)
def test_one_that_tries_every_point_once_finishes(name, pending):
    configs = asked(search_of(name, FEW), range(40), pending=pending)
    assert configs[-1] is FINISHED
    tried = [(c["k"], c["kind"]) for c in configs[:-1]]
    assert {*tried} == ALL
    # With all that is left under way, it may propose some of it again.
    assert len(tried) <= len(ALL) + pending
    assert pending or len(tried) == len(ALL)


@pytest.mark.parametrize("name", ENDING)
def test_one_that_tries_every_point_once_knows_after_a_restart_what_is_left(name):
    whole = search_of(name, FEW)
    begun = asked(whole, range(5))
    other = search_of(name, FEW)
    other.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    rest = asked(other, range(5, 40))
    assert rest[-1] is FINISHED
    assert rest == asked(whole, range(5, 40))
    assert {(c["k"], c["kind"]) for c in [*begun, *rest[:-1]]} == ALL
