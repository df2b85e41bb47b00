"""Two toy problems that no fixed hyperparameters solve: populations compared with plain searches.

The first is that of figure 2 of Jaderberg et al., "Population Based Training of Neural Networks"
(arXiv:1711.09846): gradient ascent on a surrogate that sees only some of the parameters.

The second is a learning rate that should rise and fall again, as in an example of Ray Tune. The
accuracy grows faster the closer the rate is to an optimum. The optimum rises until an accuracy of
100 and falls until 200. The accuracy falls if the rate is more than three times too large. A step
at the optimum adds 0.5 on average, so 200 of them add 100. Each step also adds noise, and a clone
of the best trial keeps its lucky noise. Clones that change no rate show how much that alone is
worth. Without noise only the schedule counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import SeedSequence, default_rng

import dasktune as tune
from benchmarks._report import spread, table
from dasktune.schedulers import ExploitOther, PopulationBasedTraining, TrialScheduler
from dasktune.testing import simulate

__all__ = ["SETTINGS", "SIDES", "accuracy", "quadratic", "quadratic_pbt", "triangle_pbt"]

_STEPS = 200

#: The range of learning rates in the second toy.
_RATES = (1e-4, 2e-2)

_POPULATION = 8


#: Steps and noise of the second toy: as in the example, and without noise.
SETTINGS = ((200, 2.0), (600, 0.0))


def quadratic(scheduler: TrialScheduler | None, seed: int = 3) -> float:
    """Return the highest Q at the end of two trials of the first toy; 1.2 is the maximum."""

    def ascent(config: dict[str, Any], checkpoint: Any) -> Any:
        theta, step = checkpoint or ([0.9, 0.9], 0)
        while step < _STEPS:
            # The surrogate is 1.2 - (h0 theta0^2 + h1 theta1^2).
            slopes = [-2 * config[f"h{i}"] * theta[i] for i in range(2)]
            theta = [own + 0.02 * slope for own, slope in zip(theta, slopes, strict=True)]
            step += 1
            yield {"q": 1.2 - theta[0] ** 2 - theta[1] ** 2}, 1.0, (list(theta), step)

    results = simulate(
        ascent,
        param_space={"h0": 0.0, "h1": 0.0, "pair": tune.grid_search([0, 1])},
        tune_config=tune.TuneConfig(metric="q", mode="max", seed=seed, scheduler=scheduler),
        slots=2,
    )
    return max(result.metrics["q"] for result in results)


class _FromThePair(PopulationBasedTraining):
    """Starts with h = (1, 0) and (0, 1), as the paper does."""

    def on_trial_add(self, trial: Any) -> Any:
        super().on_trial_add(trial)
        pair = trial.config["pair"]
        config = {**trial.config, "h0": 1.0 - pair, "h1": 0.0 + pair}
        key = trial.trial_id
        return (ExploitOther(trial_id=key, donor=key, config=config, reason="of the paper"),)


def quadratic_pbt(*, exploit: bool = True, synch: bool = False) -> TrialScheduler:
    return _FromThePair(
        time_attr="training_iteration",
        perturbation_interval=5,
        quantile_fraction=0.5 if exploit else 0.0,
        hyperparam_mutations={"h0": tune.uniform(0, 1), "h1": tune.uniform(0, 1)},
        resample_probability=1.0,
        synch=synch,
    )


def accuracy(scheduler: TrialScheduler | None, rate: Any, seed: int, *, steps: int, noise: float) -> float:
    """Return the highest final accuracy of eight trials of the second toy."""
    streams = SeedSequence(seed)

    def training(config: dict[str, Any], checkpoint: Any) -> Any:
        reached, step = checkpoint or (0.0, 0)
        # Each start of a trial draws other numbers; a clone has the configuration of its donor.
        rng = default_rng(streams.spawn(1)[0])
        while step < steps:
            best = min(0.01, max(0.001, 0.01 * (1 - abs(reached - 100) / 100)))
            error = max(config["lr"], best) / min(config["lr"], best)
            if error < 3:
                reached += rng.random() / error
            elif config["lr"] > best:
                reached -= (error - 3) * rng.random()
            reached = max(0.0, reached + noise * rng.normal())
            step += 1
            yield {"accuracy": reached}, float(rng.uniform(0.5, 1.5)), (reached, step)

    results = simulate(
        training,
        param_space={"lr": rate},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=1 if isinstance(rate, dict) else _POPULATION,
            seed=seed,
            scheduler=scheduler,
        ),
        slots=_POPULATION,
    )
    return max(result.metrics["accuracy"] for result in results)


def triangle_pbt(*, explore: bool = True, interval: int = 5, synch: bool = False) -> TrialScheduler:
    changes: dict[str, Any] = {"hyperparam_mutations": {"lr": tune.uniform(*_RATES)}}
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=interval,
        synch=synch,
        **(changes if explore else {"custom_explore_fn": dict}),
    )


#: The sides of the second toy: a factory of the scheduler, and the domain of the initial rates.
SIDES: dict[str, tuple[Callable[[], TrialScheduler | None], Any]] = {
    "PBT": (triangle_pbt, tune.uniform(*_RATES)),
    "PBT, synch": (lambda: triangle_pbt(synch=True), tune.uniform(*_RATES)),
    "PBT, every 20 steps": (lambda: triangle_pbt(interval=20), tune.uniform(*_RATES)),
    "clones, rates unchanged": (lambda: triangle_pbt(explore=False), tune.uniform(*_RATES)),
    "random rates": (lambda: None, tune.uniform(*_RATES)),
    "rates of a grid": (
        lambda: None,
        tune.grid_search([1e-4, 1e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1e-2]),
    ),
}


def main(repeats: int = 20) -> None:
    print("\nThe quadratic: highest Q of two trials after 200 steps\n")
    rows = [
        [name, spread([quadratic(quadratic_pbt(**given), seed) for seed in range(repeats)], ".3f")]
        for name, given in (
            ("without exploit", {"exploit": False}),
            ("PBT", {}),
            ("PBT, synch", {"synch": True}),
        )
    ]
    print(table(["scheduler", f"Q, {repeats} seeds"], rows))
    for steps, noise in SETTINGS:
        print(f"\nThe triangle: accuracy after {steps} steps, noise {noise:g}\n")
        rows = []
        for name, (make, rate) in SIDES.items():
            reached = [accuracy(make(), rate, seed, steps=steps, noise=noise) for seed in range(repeats)]
            above = sum(one > 200 for one in reached)
            rows.append([name, spread(reached, ".0f"), f"{above} of {repeats}"])
        print(table(["search", "accuracy", "above 200"], rows))


if __name__ == "__main__":
    main()
