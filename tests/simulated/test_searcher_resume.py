"""A search that was cut off resumes as if it had not been, with trials under way.

What this shows for each searcher is what the table in docs/searchers.md says of it.
"""

from __future__ import annotations

import json
import warnings

import pytest
from numpy.random import SeedSequence

from dasktune.search import (
    AxSearch,
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    QuasiRandomSearch,
    Repeater,
    SearchGenerator,
    TuneBOHB,
    WarmStart,
)
from dasktune.search.search_algorithm import SearchSpec
from dasktune.search.searcher import Searcher
from dasktune.space import loguniform, randint, uniform

SPACE = {"x": uniform(-2, 2), "lr": loguniform(1e-4, 1), "k": randint(1, 9)}

#: How many suggestions there are, when it is cut off, and how many are under way.
COUNT, CUTS, PENDING = 16, (3, 8, 14), 3


def sampler(name, **arguments):
    optuna = pytest.importorskip("optuna")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return OptunaSearch(sampler=getattr(optuna.samplers, name)(seed=1, **arguments))


def needing(module, make):
    def made():
        pytest.importorskip(module)
        return make()

    return made


EARLIER = [({"x": number / 20, "lr": 0.1, "k": number % 3}, number % 7) for number in range(20)]

MAKERS = {
    "random": BasicVariantGenerator,
    "quasi-random": QuasiRandomSearch,
    "halton": lambda: QuasiRandomSearch(method="halton"),
    "bohb": TuneBOHB,
    "warm-start": needing("sklearn", lambda: WarmStart([EARLIER])),
    "gp": needing("scipy", lambda: GaussianProcessSearch(n_initial_points=6)),
    "optuna": needing("optuna", OptunaSearch),
    "optuna-tpe": lambda: sampler("TPESampler", n_startup_trials=5),
    "optuna-cma": needing("cmaes", lambda: sampler("CmaEsSampler", n_startup_trials=3)),
    "optuna-nsga2": lambda: sampler("NSGAIISampler", population_size=4),
    "optuna-nsga3": lambda: sampler("NSGAIIISampler", population_size=4),
    "optuna-qmc": lambda: sampler("QMCSampler"),
    "optuna-random": lambda: sampler("RandomSampler"),
    "optuna-gp": needing("torch", lambda: sampler("GPSampler", n_startup_trials=4)),
    "hyperopt": needing("hyperopt", lambda: HyperOptSearch(n_initial_points=6)),
    "bayesopt": needing("bayes_opt", lambda: BayesOptSearch(random_search_steps=6)),
    "ax": needing("ax", lambda: AxSearch(initialization_budget=5)),
    "limiter": lambda: ConcurrencyLimiter(TuneBOHB(), 4),
    "limiter-in-batches": lambda: ConcurrencyLimiter(TuneBOHB(), 4, batch=True),
    "repeater": lambda: Repeater(TuneBOHB(), repeat=2),
}


def made(name):
    searcher = MAKERS[name]()
    search = SearchGenerator(searcher) if isinstance(searcher, Searcher) else searcher
    search.setup(SearchSpec(space=SPACE, num_samples=COUNT, metric="loss", mode="min", seed=SeedSequence(3)))
    return search


def lived(name, *, cut=None):
    """Return all suggestions of an experiment, perhaps one that was cut off before one of them."""
    search, configs, running = made(name), [], []
    for number in range(COUNT):
        if number == cut:
            assert running
            state = json.loads(json.dumps(search.state_dict()))
            search = made(name)
            search.load_state_dict(state)
        config = search.next_trial(f"t{number}").config
        while config is None:
            end(search, *running.pop(0))
            config = search.next_trial(f"t{number}").config
        configs.append(config)
        running.append((f"t{number}", config))
        if len(running) > PENDING:
            end(search, *running.pop(0))
    return configs


def end(search, trial_id, config):
    loss = config["x"] ** 2 + abs(config["lr"] - 0.1) + config["k"] / 10
    failed = trial_id == "t2"
    result = {"loss": loss, "training_iteration": 1}
    search.on_trial_complete(trial_id, None if failed else result, error=failed)


# Ax and torch call what is deprecated of their own.
MARKS = {"ax": pytest.mark.filterwarnings("ignore::DeprecationWarning"), "bayesopt": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS.get(one, ())) for one in MAKERS])
def test_one_that_is_resumed_with_pending_trials_suggests_what_the_other_would(name):
    whole = lived(name)
    assert len({json.dumps(config, sort_keys=True) for config in whole}) >= COUNT / 2
    for cut in CUTS:
        assert lived(name, cut=cut) == whole
