"""What users of other tuners type into the constructors of searchers is taken, or named."""

from __future__ import annotations

from inspect import signature

import pytest

from dasktune.errors import ConfigError
from dasktune.search import (
    AxSearch,
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    TuneBOHB,
)
from dasktune.space import uniform

COMMON = ["space", "metric", "mode", "points_to_evaluate"]

#: The arguments of Ray Tune 2.60, in its order.
ARGUMENTS = {
    BasicVariantGenerator: [
        "points_to_evaluate",
        "max_concurrent",
        "constant_grid_search",
        "random_state",
    ],
    ConcurrencyLimiter: ["searcher", "max_concurrent", "batch"],
    Repeater: ["searcher", "repeat", "set_index"],
    AxSearch: [*COMMON, "parameter_constraints", "outcome_constraints", "ax_client"],
    BayesOptSearch: [
        *COMMON,
        "utility_kwargs",
        "random_state",
        "random_search_steps",
        "verbose",
        "patience",
        "skip_duplicate",
        "analysis",
        "repeat_float_precision",
    ],
    HyperOptSearch: [*COMMON, "n_initial_points", "random_state_seed", "gamma"],
    OptunaSearch: [*COMMON, "sampler", "study_name", "storage", "seed", "evaluated_rewards"],
    TuneBOHB: [
        "space",
        "bohb_config",
        "metric",
        "mode",
        "points_to_evaluate",
        "seed",
        "max_concurrent",
    ],
}


@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_every_argument_has_its_place(kind):
    names = list(signature(kind).parameters)
    assert [name for name in names if name in ARGUMENTS[kind]] == ARGUMENTS[kind]


@pytest.mark.parametrize("kind", [TuneBOHB, GaussianProcessSearch, BayesOptSearch, HyperOptSearch])
def test_a_space_of_another_library_is_named(kind):
    with pytest.raises(ConfigError, match=r"space must be a dict, got .* searches dasktune's"):
        kind([("x", uniform(0, 1))])
