"""What Ray Tune users type: the names, the defaults and the order of arguments."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from dasktune.schedulers import (
    PB2,
    ASHAScheduler,
    DistributeResources,
    DistributeResourcesToTopJob,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

GOAL: dict[str, Any] = {"metric": None, "mode": None}
EPOCHS: dict[str, Any] = {"time_attr": "training_iteration", **GOAL}
SECONDS: dict[str, Any] = {"time_attr": "time_total_s", **GOAL}
HYPERBAND = {**EPOCHS, "max_t": 81, "reduction_factor": 3, "stop_last_trials": True}
AMOUNTS = {
    "add_bundles": False,
    "increase_by": None,
    "increase_by_times": -1,
    "reserve_resources": None,
}


@pytest.mark.parametrize(
    ("make", "defaults"),
    [
        (FIFOScheduler, {}),
        (
            ASHAScheduler,
            {
                **EPOCHS,
                "max_t": 100,
                "grace_period": 1,
                "reduction_factor": 4,
                "brackets": 1,
                "stop_last_trials": True,
            },
        ),
        (HyperBandScheduler, HYPERBAND),
        (HyperBandForBOHB, HYPERBAND),
        (
            MedianStoppingRule,
            {
                **SECONDS,
                "grace_period": 60,
                "min_samples_required": 3,
                "min_time_slice": 0,
                "hard_stop": True,
                # Ray Tune's rule has no milestones.
                "check_at": None,
                "reduction_factor": None,
                "mean_start": None,
            },
        ),
        (
            PopulationBasedTraining,
            {
                **SECONDS,
                "perturbation_interval": 60,
                "burn_in_period": 0,
                "hyperparam_mutations": None,
                "quantile_fraction": 0.25,
                "resample_probability": 0.25,
                "perturbation_factors": (1.2, 0.8),
                "custom_explore_fn": None,
                "log_config": True,
                "require_attrs": True,
                "synch": False,
            },
        ),
        (
            PB2,
            {
                **SECONDS,
                "perturbation_interval": 60,
                "hyperparam_bounds": None,
                "quantile_fraction": 0.25,
                "log_config": True,
                "require_attrs": True,
                "synch": False,
                "custom_explore_fn": None,
            },
        ),
        (PopulationBasedTrainingReplay, {"policy_file": ...}),
        (
            ResourceChangingScheduler,
            {"base_scheduler": None, "resources_allocation_function": DistributeResources},
        ),
        (DistributeResources, AMOUNTS),
        (DistributeResourcesToTopJob, {**AMOUNTS, **GOAL}),
    ],
)
def test_arguments_have_the_names_and_defaults_of_ray_tune(make: Any, defaults: dict[str, Any]):
    told = {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in signature(make).parameters.items()
    }
    function = told.get("resources_allocation_function")
    if function is not None:
        told["resources_allocation_function"] = type(function)
    assert told == defaults


@pytest.mark.parametrize("name", ["CONTINUE", "PAUSE", "STOP", "NOOP"])
@pytest.mark.parametrize("owner", [TrialScheduler, FIFOScheduler, FIFOScheduler()])
def test_decisions_of_ray_tune_say_what_to_return(owner: Any, name: str):
    with pytest.raises(AttributeError, match=rf"{name} is a constant of Ray Tune.*dasktune\.schedulers"):
        getattr(owner, name)
    assert not hasattr(owner, name)
