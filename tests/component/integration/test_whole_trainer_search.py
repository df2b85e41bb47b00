"""Whole searches with a small trainer instead of Transformers, on workers in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers_kit
from distributed import LocalCluster
from transformers_kit import BestRun, Trainer, TrainingArguments

import dasktune as tune
from dasktune.integration.transformers import hyperparameter_search
from dasktune.schedulers import ASHAScheduler
from dasktune.search import OptunaSearch
from dasktune.tuner.result_grid import NoResultError, ResultGrid


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def options(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let a search run here, with the trainer of this process."""
    transformers_kit.install(monkeypatch)
    quiet = {"verbose": 0, "dashboard": False}
    return {"client": cluster, "storage_path": tmp_path, "isolation": "thread", "n_trials": 1, **quiet}


def make_trainer(model_init: Any = lambda: {"weight": 0.0}, **arguments: Any) -> Trainer:
    rows = list(range(32))
    return Trainer(TrainingArguments(**arguments), model_init, train_dataset=rows, eval_dataset=rows)


def rates(trial: object) -> dict[str, Any]:
    return {"learning_rate": tune.grid_search([0.5, 0.1, 0.01])}


def test_a_search_stops_poor_trials_and_returns_the_best_run(options: dict[str, Any]) -> None:
    scheduler = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=3)
    best = hyperparameter_search(make_trainer(), rates, scheduler=scheduler, seed=0, **options)
    assert isinstance(best, BestRun)
    assert best.objective == 0.5**16
    assert best.hyperparameters == {"learning_rate": 0.5}
    assert isinstance(best.run_summary, ResultGrid)
    assert best.run_id == best.run_summary.get_best_result().trial_id
    assert [len(result.history) for result in best.run_summary] == [4, 1, 1]


def test_a_search_can_maximise_and_name_its_trials(options: dict[str, Any]) -> None:
    best = hyperparameter_search(
        make_trainer(),
        rates,
        direction="maximize",
        hp_name=lambda config: f"rate-{config['learning_rate']}",
        trial_dirname_creator=lambda trial: trial.trial_name,
        **options,
    )
    assert best.hyperparameters == {"learning_rate": 0.01}
    names = sorted(Path(result.path).name for result in best.run_summary)
    assert names == ["rate-0.01", "rate-0.1", "rate-0.5"]


def test_a_search_for_several_objectives_returns_the_pareto_front(options: dict[str, Any]) -> None:
    runs = hyperparameter_search(
        make_trainer(),
        rates,
        compute_objective=lambda metrics: (metrics["eval_loss"], min(metrics["rate"], 0.1)),
        direction=["minimize", "minimize"],
        **options,
    )
    # The rate 0.1 is no better than 0.5 in the second objective, and worse in the first.
    assert [run.hyperparameters["learning_rate"] for run in runs] == [0.5, 0.01]
    assert runs[0].objective == [0.5**16, 0.1]


def test_a_space_of_optuna_is_given_to_the_searcher(options: dict[str, Any]) -> None:
    pytest.importorskip("optuna")

    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.5)}

    nothing: Any = lambda trial: {}  # noqa: E731 - as the page shows it
    search = {"search_alg": OptunaSearch(space), "hp_space": nothing, "seed": 0}
    best = hyperparameter_search(make_trainer(), **{**options, **search, "n_trials": 3})
    rates = {result.config["learning_rate"] for result in best.run_summary}
    assert len(rates) == 3
    assert best.hyperparameters["learning_rate"] == max(rates)


def test_a_search_without_an_objective_says_why(options: dict[str, Any]) -> None:
    def fail() -> Any:
        raise ValueError("there is no such model")

    with pytest.raises(NoResultError, match="there is no such model"):
        hyperparameter_search(make_trainer(fail), lambda trial: {"learning_rate": 0.5}, **options)
