"""Let a population of agents learn to balance a pole, while their learning rates change.

Population based training: agents that have fallen behind become clones of better ones, with changed
hyperparameters. On this machine, with one worker process per CPU (needs NumPy only):

    python examples/11_population_agent.py

On a Dask cluster, whose workers also have dasktune:

    python examples/11_population_agent.py --address tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import dasktune as tune
from dasktune.schedulers import PopulationBasedTraining

#: Carts that an agent drives at a time, and the steps for which it can balance a pole at most.
CARTS = 32
LONGEST = 200

#: Updates of an agent, and after how many the population is ranked.
UPDATES = 60
UPDATES_BETWEEN_RANKINGS = 5


def drive(weights: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drive carts until their poles fall; return states, surprises of pushes, and what ran.

    The dynamics are those of Barto, Sutton and Anderson (1983), as in most libraries of
    reinforcement learning: a push of 10 N to the left or right every 0.02 s.
    """
    state = rng.uniform(-0.05, 0.05, (CARTS, 4))
    alive = np.ones(CARTS, dtype=bool)
    states, surprises, running = [], [], []
    for _ in range(LONGEST):
        right = 1 / (1 + np.exp(-np.clip(state @ weights, -30, 30)))
        push = rng.random(CARTS) < right
        states.append(state.copy())
        surprises.append(push - right)
        running.append(alive.copy())
        _, speed, angle, turn = state.T
        force = np.where(push, 10.0, -10.0)
        along = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        swing = (9.8 * np.sin(angle) - np.cos(angle) * along) / (
            0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        )
        shift = along - 0.05 * swing * np.cos(angle) / 1.1
        state = state + 0.02 * np.stack([speed, shift, turn, swing], axis=1)
        alive &= (np.abs(state[:, 0]) < 2.4) & (np.abs(state[:, 2]) < 0.2095)
        if not alive.any():
            break
        # A cart that has ended stays where it is, and counts no more.
        state[~alive] = 0.0
    return np.array(states), np.array(surprises), np.array(running)


class Agent(tune.Trainable):
    """An agent that learns by REINFORCE (Williams, 1992), with the mean return as baseline."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin with an agent that pushes at random."""
        self.rng = np.random.default_rng(config["seed"])
        self.weights = np.zeros(4)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take other hyperparameters; the weights of a clone come from the checkpoint."""
        self.rate, self.discount = new_config["rate"], new_config["discount"]
        self.rng = np.random.default_rng(new_config["seed"])
        self.weights = np.zeros(4)
        return True

    def step(self) -> dict[str, Any]:
        """Drive the carts once, and change the weights towards what was better than the mean."""
        states, surprises, running = drive(self.weights, self.rng)
        gain = np.zeros(CARTS)
        gains = np.zeros(running.shape)
        for at in reversed(range(len(running))):
            gain = np.where(running[at], 1 + self.discount * gain, 0.0)
            gains[at] = gain
        count = running.sum(axis=1, keepdims=True)
        baseline = gains.sum(axis=1, keepdims=True) / np.maximum(count, 1)
        advantage = np.where(running, gains - baseline, 0.0)
        advantage /= advantage.std() + 1e-8
        slope = np.einsum("tc,tc,tcf->f", advantage, surprises, states) / CARTS
        self.weights = self.weights + self.rate * slope
        return {"balanced": float(running.sum(axis=0).mean()), "rate": self.rate}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the weights and the state of the random generator."""
        state = {"weights": self.weights.tolist(), "rng": self.rng.bit_generator.state}
        Path(checkpoint_dir, "agent.json").write_text(json.dumps(state))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Load what :meth:`save_checkpoint` saved, perhaps of another agent."""
        state = json.loads(Path(checkpoint, "agent.json").read_text())
        self.weights = np.array(state["weights"])
        self.rng.bit_generator.state = state["rng"]


def search(options: argparse.Namespace, *, changes: bool) -> tune.ResultGrid:
    """Train a population, with or without exploits."""
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=UPDATES_BETWEEN_RANKINGS,
        hyperparam_mutations={
            "rate": tune.loguniform(1e-4, 1.0),
            "discount": tune.uniform(0.8, 1.0),
        },
    )
    return tune.Tuner(
        Agent,
        param_space={"rate": tune.loguniform(1e-4, 1.0), "discount": tune.uniform(0.8, 1.0), "seed": 0},
        tune_config=tune.TuneConfig(
            metric="balanced",
            mode="max",
            num_samples=options.num_agents,
            scheduler=pbt if changes else None,
            seed=0,
        ),
        run_config=tune.RunConfig(
            storage_path=options.storage_path,
            stop={"training_iteration": UPDATES},
        ),
        client=options.address,
    ).fit()


def main() -> None:
    """Train two populations of as many updates: one that changes, and one that does not."""
    options = parse_arguments()
    for changes in (False, True):
        results = search(options, changes=changes)
        ends = sorted(np.mean([row["balanced"] for row in one.history[-10:]]) for one in results)
        name = "with PBT" if changes else "fixed"
        print(
            f"{name:9} an agent balances {np.median(ends):5.1f} of {LONGEST} steps (median), "
            f"{ends[-1]:.1f} at best"
        )
    best = results.get_best_result()
    rates = [row["rate"] for row in best.history]
    schedule = [rates[0], *(now for before, now in pairwise(rates) if before != now)]
    print(f"The learning rates of the best agent: {' > '.join(f'{rate:.3g}' for rate in schedule)}")


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Population based training of agents.")
    parser.add_argument("--address", help="of a Dask scheduler; without it, this machine is used")
    parser.add_argument("--storage-path", help="where results go; default: ~/dasktune_results")
    parser.add_argument("--num-agents", type=int, default=8, help="the population; default: 8")
    return parser.parse_args()


# The worker processes of a local cluster import this file. They must not start another search.
if __name__ == "__main__":
    main()
