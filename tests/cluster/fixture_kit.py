"""Experiments of which `tests/fixtures` keeps directories that an older revision has written.

The generator runs them, and the tests restore them: both need the same trainables, searches and
objects. What stands here must not be renamed, because the stored directories name it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

import dasktune as tune
from dasktune import schedulers, search, sklearn, stopper
from dasktune.callback import Callback
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback

#: What a process does after so many results, or calls of `partial_fit`: it kills itself.
DIES_AFTER = "DASKTUNE_FIXTURE_DIES_AFTER"

#: What the trainables report; other metrics describe time and place.
METRICS = ("training_iteration", "score", "cost", "nested/half", "done")

# Trainables


def train(config: dict[str, Any]) -> None:
    """Climb by what the configuration is worth, and save each iteration."""
    checkpoint = tune.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"iteration": 0, "score": 0.0}
    for iteration in range(state["iteration"] + 1, config.get("last", 8) + 1):
        time.sleep(config.get("pause", 0))
        if config.get("fails_at") == iteration:
            raise ValueError(f"it was to fail at {iteration}")
        score = state["score"] + worth(config)
        state = {"iteration": iteration, "score": score}
        tune.report(told(config, iteration, score), checkpoint=tune.Checkpoint.from_dict(state))


class Climber(tune.Trainable):
    """The same as a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.score = 0.0

    def step(self) -> dict[str, Any]:
        self.score += worth(self.config)
        last = self.config.get("last", 8)
        return told(self.config, self.iteration + 1, self.score) | {"done": self.iteration + 1 >= last}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "score.json").write_text(json.dumps(self.score))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.score = json.loads(Path(checkpoint, "score.json").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.score = 0.0
        return True


def worth(config: Mapping[str, Any]) -> float:
    return round(1 - (config["x"] - 0.3) ** 2, 6)


def told(config: Mapping[str, Any], iteration: int, score: float) -> dict[str, Any]:
    cost = iteration * config["x"]
    return {"score": score, "cost": cost, "nested": {"half": score / 2}}


# What users write


class DiesAfter(Callback):
    """Kills the driver after so many results, if the environment says so."""

    def __init__(self) -> None:
        self.heard = 0

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any) -> None:
        self.heard += 1
        die_after(self.heard)

    def get_state(self) -> dict[str, Any]:
        return {"heard": self.heard}

    def set_state(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


class Notes(LoggerCallback):
    """Counts how many trials have ended."""

    def __init__(self) -> None:
        self.ended = 0

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        self.ended += 1

    def get_state(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.ended = state["ended"]


class OwnStopper(stopper.Stopper):
    """Ends a trial whose score is large, and counts what it has seen."""

    def __init__(self, most: float) -> None:
        self.most, self.seen = most, 0

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        self.seen += 1
        return result["score"] > self.most

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


class OwnScheduler(schedulers.TrialScheduler):
    """Stops a trial that is worse than the worst that has ended."""

    def __init__(self) -> None:
        self.worst = 0.0

    def on_trial_result(self, trial: Any, result: Mapping[str, Any]) -> Any:
        if result["training_iteration"] == 4:
            if result["score"] < self.worst:
                return schedulers.Stop("it is worse than others were")
            self.worst = max(self.worst, result["score"] - 0.1)
        return schedulers.Continue()

    def choose_trial_to_run(self, waiting: Any) -> Any:
        return next(iter(waiting.pending.values()), None)

    def state_dict(self) -> dict[str, Any]:
        return {"worst": self.worst}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.worst = state["worst"]


class OwnSearcher(search.Searcher):
    """Walks over the unit interval in steps that shrink when a trial was worse."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.x, self.by, self.best = 0.9, -0.2, 0.0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.x = round((self.x + self.by) % 1, 6)
        return {"x": self.x}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        score = (result or {}).get("score", 0.0)
        if score < self.best:
            self.by /= -2
        self.best = max(score, self.best)

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "by": self.by, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.by, self.best = state["x"], state["by"], state["best"]


class HillClimber(search.AskTell):
    """Tries points beside the best."""

    def __init__(self, domains: Mapping[str, Any], seed: int) -> None:
        self.domains, self.rng = domains, np.random.default_rng(seed)
        self.best: tuple[float, dict[str, Any]] = (float("inf"), {})

    def ask(self) -> dict[str, Any]:
        fresh = {name: one.sample(random_state=self.rng) for name, one in self.domains.items()}
        return {name: (fresh[name] + self.best[1].get(name, fresh[name])) / 2 for name in fresh}

    def tell(self, params: Mapping[str, Any], loss: Any) -> None:
        if loss is not None and loss < self.best[0]:
            self.best = loss, dict(params)


def better_half(history: Mapping[str, list[dict[str, Any]]]) -> dict[str, int]:
    best = sorted(history, key=lambda name: history[name][-1]["score"], reverse=True)
    done = len(history[best[0]])
    return {} if done >= 5 else dict.fromkeys(best[: -(-len(best) // 2)], 2)


def rounded(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "x": round(config["x"], 3)}


def die_after(count: int) -> None:
    if str(count) == os.environ.get(DIES_AFTER):
        os.kill(os.getpid(), signal.SIGKILL)


# Experiments

#: Nothing depends on which of two trials is the quicker.
ONE = {"max_concurrent_trials": 1, "seed": 7}
GOAL = {"metric": "score", "mode": "max"}
SPACE = {"x": tune.uniform(0, 1), "last": 5}


def finished_asha() -> dict[str, Any]:
    """Return what has come to its end, one trial with an error."""
    return {
        "trainable": train,
        "param_space": {
            "x": tune.grid_search([0.3, 0.9, 0.1, 0.35, 0.6]),
            "shape": (2, 3),
            "fails_at": tune.sample_from(fails_at),
        },
        "tune_config": tune.TuneConfig(
            **GOAL, scheduler=schedulers.ASHAScheduler(max_t=5, reduction_factor=2)
        ),
        "run_config": {"checkpoint_config": tune.CheckpointConfig(num_to_keep=2)},
    }


def fails_at(spec: Any) -> int | None:
    return 2 if spec.config.x == 0.35 else None


def finished_class() -> dict[str, Any]:
    return {
        "trainable": Climber,
        "param_space": {"x": tune.quniform(0, 1, 0.01), "kind": tune.choice(["a", ("b",)])},
        "tune_config": tune.TuneConfig(
            **GOAL, num_samples=4, seed=3, scheduler=schedulers.ASHAScheduler(max_t=5)
        ),
        "run_config": {
            "checkpoint_config": tune.CheckpointConfig(
                checkpoint_frequency=2, num_to_keep=1, checkpoint_score_attribute="score"
            ),
            "stop": {"score": 4.9},
        },
    }


def finished_pbt() -> dict[str, Any]:
    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations={"x": tune.uniform(0, 1), "depth": [1, 2, 3]},
        custom_explore_fn=rounded,
    )
    return {
        "trainable": train,
        "param_space": {"x": tune.uniform(0, 1), "depth": 2, "last": 4, "pause": 0.02},
        "tune_config": tune.TuneConfig(**GOAL, num_samples=4, scheduler=scheduler, seed=1),
        "run_config": {"checkpoint_config": tune.CheckpointConfig(num_to_keep=2)},
    }


def killed_asha() -> dict[str, Any]:
    """Return what is killed when some trials have ended, and two run at a time."""
    return {
        "trainable": train,
        "param_space": {
            "x": tune.uniform(0, 1),
            "depth": tune.lograndint(1, 64),
            "kind": tune.choice(["a", "b"]),
            "pause": 0.1,
        },
        "tune_config": tune.TuneConfig(
            **GOAL,
            num_samples=8,
            search_alg=search.OptunaSearch(),
            scheduler=schedulers.ASHAScheduler(max_t=6, reduction_factor=2),
            seed=5,
        ),
        "run_config": {
            "callbacks": [DiesAfter()],
            "checkpoint_period": 0.9,
            "checkpoint_config": tune.CheckpointConfig(num_to_keep=1),
        },
    }


def one_at_a_time(
    *,
    trainable: Any = train,
    space: Mapping[str, Any] | None = None,
    scheduler: Any = None,
    searcher: Any = None,
    stop: Any = None,
    samples: int = 5,
    **goal: Any,
) -> dict[str, Any]:
    """Return a case whose results are the same wherever its run is cut in two."""
    return {
        "trainable": trainable,
        "param_space": SPACE if space is None else space,
        "tune_config": tune.TuneConfig(
            **(goal or GOAL), **ONE, num_samples=samples, scheduler=scheduler, search_alg=searcher
        ),
        "run_config": {
            "stop": stop,
            "callbacks": [DiesAfter()],
            "checkpoint_period": 0.05,
            "checkpoint_config": tune.CheckpointConfig(num_to_keep=1),
        },
    }


def optuna_asha() -> dict[str, Any]:
    return one_at_a_time(
        space={
            "x": tune.uniform(0, 1),
            "lr": tune.qloguniform(1e-4, 1, 1e-4),
            "width": tune.qrandint(8, 64, 8),
            "model": {"kind": tune.choice(["a", "b"]), "depth": tune.randint(1, 5)},
            "last": 5,
        },
        searcher=search.OptunaSearch(points_to_evaluate=[{"x": 0.5}]),
        scheduler=schedulers.AsyncHyperBandScheduler(max_t=5, reduction_factor=2, brackets=2),
        stop=[stopper.TrialPlateauStopper("score"), stopper.MaximumIterationStopper(5)],
    )


def hyperopt_median() -> dict[str, Any]:
    return one_at_a_time(
        searcher=search.ConcurrencyLimiter(search.HyperOptSearch(n_initial_points=2), 1),
        scheduler=schedulers.MedianStoppingRule(grace_period=2, min_samples_required=2),
    )


def bayesopt_promoting() -> dict[str, Any]:
    return one_at_a_time(
        searcher=search.BayesOptSearch(),
        scheduler=schedulers.PromotingASHAScheduler(max_t=5, reduction_factor=2),
    )


def bohb_hyperband() -> dict[str, Any]:
    return one_at_a_time(
        searcher=search.TuneBOHB(),
        scheduler=schedulers.HyperBandForBOHB(max_t=5, reduction_factor=2),
    )


def quasi_random_halving() -> dict[str, Any]:
    return one_at_a_time(
        trainable=Climber,
        searcher=search.QuasiRandomSearch(),
        scheduler=schedulers.SuccessiveHalvingScheduler(max_t=5, reduction_factor=2),
        stop=stopper.CombinedStopper(
            stopper.ExperimentPlateauStopper("score", mode="max", top=3, patience=50),
            stopper.TimeoutStopper(36000),
        ),
    )


def variants_pbt() -> dict[str, Any]:
    return one_at_a_time(
        space={
            "x": tune.uniform(0, 1),
            "inner": {"lr": tune.loguniform(1e-4, 1), "n": tune.qrandn(3, 1, 0.5)},
            "last": 5,
        },
        searcher=search.BasicVariantGenerator(points_to_evaluate=[{"x": 0.25}]),
        scheduler=schedulers.PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            synch=True,
            quantile_fraction=0.5,
            hyperparam_mutations={"x": tune.uniform(0, 1), "inner": {"lr": [0.1, 0.01]}},
        ),
        samples=4,
    )


def pb2() -> dict[str, Any]:
    return one_at_a_time(
        scheduler=schedulers.PB2(
            time_attr="training_iteration",
            perturbation_interval=2,
            synch=True,
            quantile_fraction=0.5,
            hyperparam_bounds={"x": [0.0, 1.0]},
        ),
        samples=4,
    )


def resources_repeated() -> dict[str, Any]:
    return one_at_a_time(
        searcher=search.Repeater(search.QuasiRandomSearch(), repeat=2),
        scheduler=schedulers.ResourceChangingScheduler(
            schedulers.HyperBandScheduler(max_t=5, reduction_factor=2),
            schedulers.DistributeResourcesToTopJob(**GOAL),
        ),
        samples=4,
    )


def several_goals() -> dict[str, Any]:
    goals = {"metric": ["score", "cost"], "mode": ["max", "min"]}
    return one_at_a_time(
        searcher=search.OptunaSearch(),
        scheduler=schedulers.MultiObjectiveASHAScheduler(
            metrics=goals["metric"], modes=goals["mode"], max_t=5, reduction_factor=2
        ),
        **goals,
    )


def rounds_of_a_function() -> dict[str, Any]:
    return one_at_a_time(
        searcher=search.AskTellSearch(HillClimber),
        scheduler=schedulers.FunctionScheduler(better_half),
        stop=stopper.FunctionStopper(is_too_far),
        samples=4,
    )


def is_too_far(trial_id: str, result: Mapping[str, Any]) -> bool:
    return result["training_iteration"] >= 5


def own_classes() -> dict[str, Any]:
    case = one_at_a_time(
        space={"last": 5},
        searcher=OwnSearcher(),
        scheduler=OwnScheduler(),
        stop=OwnStopper(4.9),
    )
    case["run_config"]["callbacks"].append(Notes())
    return case


#: What is cut in two, by name: the experiment, and after how many results its driver dies.
ONE_AT_A_TIME: dict[str, tuple[Callable[[], dict[str, Any]], int]] = {
    "optuna_asha": (optuna_asha, 7),
    "hyperopt_median": (hyperopt_median, 14),
    "bayesopt_promoting": (bayesopt_promoting, 5),
    "bohb_hyperband": (bohb_hyperband, 9),
    "quasi_random_halving": (quasi_random_halving, 6),
    "variants_pbt": (variants_pbt, 11),
    "pb2": (pb2, 11),
    "resources_repeated": (resources_repeated, 7),
    "several_goals": (several_goals, 9),
    "rounds_of_a_function": (rounds_of_a_function, 7),
    "own_classes": (own_classes, 11),
}


def on_s3() -> dict[str, Any]:
    """Return what is killed and lies in an object store."""
    case = optuna_asha()
    # So slowly that the journal comes there, a segment at a time.
    case["param_space"]["pause"] = 0.4
    return case


ON_S3 = (on_s3, 9)

#: Results after which the driver of :func:`killed_asha` dies.
KILLED_AFTER = 18


def tuner(case: Mapping[str, Any], place: Any, name: str, client: Any, **more: Any) -> tune.Tuner:
    """Return the tuner that begins an experiment."""
    run_config = tune.RunConfig(
        name=name,
        storage_path=place,
        verbose=0,
        # No test waits for longer for a driver that was killed on another machine.
        driver_ttl=1.0,
        **case["run_config"],
        **more,
    )
    return tune.Tuner(
        case["trainable"],
        param_space=case["param_space"],
        tune_config=case["tune_config"],
        run_config=run_config,
        client=client,
    )


def run_classic(place: Any, name: str, client: Any, **more: Any) -> tune.ExperimentAnalysis:
    """Run an experiment by ``tune.run``, with loggers, or resume it."""
    return tune.run(
        train,
        name=name,
        storage_path=place,
        config={"x": tune.grid_search([0.1, 0.3, 0.8]), "y": tune.randn(), "last": 4},
        stop={"training_iteration": 3},
        **GOAL,
        **ONE,
        callbacks=[CSVLoggerCallback(), JsonLoggerCallback(), DiesAfter()],
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        verbose=0,
        driver_ttl=1.0,
        client=client,
        **more,
    )


# Searches


class MortalSGD(SGDClassifier):
    """Kills the process after so many calls of all objects, if the environment says so."""

    calls = 0

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        MortalSGD.calls += 1
        die_after(MortalSGD.calls)
        return super().partial_fit(X, y, classes=classes, sample_weight=sample_weight)


def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).round(3)
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def tune_search(place: Any, name: str, **more: Any) -> Any:
    return sklearn.TuneSearchCV(
        MortalSGD(random_state=0),
        {"alpha": tune.loguniform(1e-4, 1), "penalty": ["l1", "l2"]},
        n_iter=5,
        scheduler=schedulers.ASHAScheduler(max_t=4, reduction_factor=2),
        max_iters=4,
        cv=2,
        random_state=0,
        # Each step is saved, and none is put off.
        checkpoint_frequency=1,
        storage_path=place,
        name=name,
        **more,
    )


def tune_search_optuna(place: Any, name: str, **more: Any) -> Any:
    return tune_search(place, name, **more).set_params(
        search_alg=search.OptunaSearch(),
        scheduler=schedulers.MedianStoppingRule(min_samples_required=2),
        param_distributions={"alpha": tune.loguniform(1e-4, 1), "eta0": tune.uniform(0.1, 1)},
    )


def incremental_search(place: Any, name: str, **more: Any) -> Any:
    return sklearn.IncrementalSearchCV(
        MortalSGD(random_state=0),
        {"alpha": np.logspace(-4, 0, 20)},
        n_initial_parameters=4,
        max_iter=6,
        random_state=0,
        storage_path=place,
        name=name,
        **more,
    )


def hyperband_search(place: Any, name: str, **more: Any) -> Any:
    return sklearn.HyperbandSearchCV(
        MortalSGD(random_state=0),
        {"alpha": np.logspace(-4, 0, 20)},
        max_iter=6,
        random_state=0,
        storage_path=place,
        name=name,
        **more,
    )


def halving_search(place: Any, name: str, **more: Any) -> Any:
    return sklearn.SuccessiveHalvingSearchCV(
        MortalSGD(random_state=0),
        {"alpha": np.logspace(-4, 0, 20)},
        n_initial_parameters=4,
        n_initial_iter=2,
        random_state=0,
        storage_path=place,
        name=name,
        **more,
    )


#: By name: the search, and after how many calls its process dies.
SEARCHES: dict[str, tuple[Callable[..., Any], int | None]] = {
    "tune_search_finished": (tune_search, None),
    "tune_search_killed": (tune_search, 13),
    "tune_search_optuna_killed": (tune_search_optuna, 13),
    "incremental_search_killed": (incremental_search, 9),
    "hyperband_search_killed": (hyperband_search, 9),
    "halving_search_killed": (halving_search, 7),
}


def fitted(make: Callable[..., Any], place: Any, name: str, **more: Any) -> Any:
    X, y = samples()
    found = make(place, name, **more)
    is_incremental = not isinstance(found, sklearn.TuneSearchCV)
    return found.fit(X, y, **({"classes": [0, 1]} if is_incremental else {}))


# What is compared


def facts(results: Any) -> list[dict[str, Any]]:
    """Return what public attributes say about each trial, but for times and places."""
    return plain([_facts(one) for one in results])


def _facts(one: Any) -> dict[str, Any]:
    return {
        "trial_id": one.trial_id,
        "folder": Path(one.path).name,
        "config": one.config,
        "status": one.status.value,
        "results": len(one.history),
        "history": [{name: row[name] for name in METRICS if name in row} for row in one.history],
        "reason": one.reason,
        "stopped_early": one.stopped_early,
        "error": None if one.error is None else str(one.error).partition("\n")[0],
        "checkpoints": [_checkpoint(*pair) for pair in reversed(one.best_checkpoints)],
    }


def _checkpoint(checkpoint: tune.Checkpoint, metrics: Mapping[str, Any]) -> dict[str, Any]:
    with checkpoint.as_directory() as directory:
        score = Path(directory, "score.json")
        state = json.loads(score.read_text()) if score.exists() else checkpoint.to_dict()
    if not isinstance(state, float) and "score" not in state:
        state = sorted(state)  # of a search: estimators are no text
    return {"iteration": metrics["training_iteration"], "state": state}


def search_facts(found: Any) -> dict[str, Any]:
    """Return what a fitted search has come to, but for times."""
    rows = found.cv_results_
    names = [name for name in rows if "time" not in name and not name.startswith("param_")]
    return plain(
        {
            "best_params": found.best_params_,
            "best_score": found.best_score_,
            "coefficients": np.round(found.best_estimator_.coef_, 9).tolist(),
            "cv_results": {name: np.asarray(rows[name]).tolist() for name in names},
        }
    )


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back: tuples are lists, and keys texts."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else repr(value)
