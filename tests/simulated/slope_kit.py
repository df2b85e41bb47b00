"""Experiments whose early results say how good a trial will be, for searchers with a model."""

from __future__ import annotations

import dasktune as tune
from dasktune.testing import simulate

SLOTS = 4

SPACE = {
    "x": tune.uniform(-1, 1),
    "lr": tune.loguniform(1e-4, 1),
    "kind": tune.choice(["plain", {"beta": tune.uniform(0, 1)}]),
}


def floor_of(config):
    beta = 1.0 if config["kind"] == "plain" else config["kind"]["beta"]
    return (config["x"] - 0.3) ** 2 + (config["lr"] ** 0.25 - 0.5) ** 2 + (beta - 0.2) ** 2


def slope(config, checkpoint):
    """Show early how good it will be; a few fail on their way."""
    floor = floor_of(config)
    for step in range(checkpoint or 0, 9):
        if step == 1 and int(abs(config["x"]) * 1000) % 6 == 0:
            raise ValueError("diverged")
        yield {"loss": floor + 0.5 / (step + 1)}, 1.0 + floor, step + 1


def tuned(search_alg, scheduler, *, seed=0, num_samples=60, **more):
    return simulate(
        slope,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_samples,
            search_alg=search_alg,
            scheduler=scheduler,
            seed=seed,
        ),
        **{"slots": SLOTS, **more},
    )
