"""`forecast`: replay recorded trials under other trial schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dasktune.errors import ConfigError, check
from dasktune.forecast.contenders import Schedulers, arguments_note, contenders
from dasktune.forecast.recorded_trial import RecordedTrial, busy_workers, select_full
from dasktune.forecast.what_if import WhatIf, notes_of, replay_all
from dasktune.results.recorded_trials import check_searcher, recorded_trials
from dasktune.results.result import checked_mode, is_auto_filled
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, lookup

#: ``progress(done, total)`` is called after each replay.
Progress = Callable[[int, int], object]


def forecast_experiment(
    storage: Storage, metric: str | None = None, mode: Mode | None = None, *, progress: Progress
) -> WhatIf:
    """Replay an experiment under the default schedulers, from its directory.

    Parameters
    ----------
    storage : Storage
        The experiment's directory. Nothing of it is executed or unpickled.
    metric, mode : str, optional
        The goal; by default the experiment's.
    progress : callable
        ``progress(done, total)`` is called after each replay.

    Raises
    ------
    ConfigError
        If there are too few full curves, or the trials cannot be replayed.
    StorageError
        If there is no experiment, or its journal is damaged.
    """
    spec = ExperimentStore(storage).spec()
    goal = goal_of(metric, mode, (spec.get("metric"), spec.get("mode")))
    check_searcher(storage)
    trials = recorded_trials(storage)
    return forecast(trials, goal, orders=200, seed=0, min_kept=0.9, progress=progress)


def forecast(
    trials: Sequence[RecordedTrial],
    goal: tuple[str, Mode],
    *,
    schedulers: Schedulers | None = None,
    orders: int,
    seed: int,
    min_kept: float,
    workers: int | None = None,
    max_t: int | None = None,
    progress: Progress,
) -> WhatIf:
    """Replay trials under trial schedulers; `dasktune.whatif` explains the parameters.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        The trials.
    goal : tuple of str and {"min", "max"}
        The metric and its mode.
    schedulers : mapping or iterable, optional
        The schedulers to compare.
    orders, seed : int
        The number of random orders, and their seed.
    min_kept : float
        The least probability of keeping the best configuration for a recommendation.
    workers, max_t : int, optional
        The number of trials that run at a time, and the last ``training_iteration``.
    progress : callable
        ``progress(done, total)`` is called after each replay.

    Raises
    ------
    ConfigError
        If there are too few full curves, no trial reports the metric, or a scheduler cannot be
        replayed.
    """
    metric, mode = goal
    _check_reported(trials, metric)
    selection = select_full(trials, metric, mode, max_t)
    if workers is None:
        workers = busy_workers(trials)
    if workers is None:
        raise ConfigError(
            "workers must be given for results without a directory, got None. Give the number of "
            "trials that run at a time."
        )
    compared = contenders(schedulers, selection.max_t)
    for scheduler in compared.values():
        scheduler.set_search_properties(metric, mode)
    rows = replay_all(
        selection.curves, compared, workers=workers, orders=orders, seed=seed, progress=progress
    )
    return WhatIf(
        rows=rows,
        metric=metric,
        mode=mode,
        num_curves=len(selection.curves),
        max_t=selection.max_t,
        orders=orders,
        workers=workers,
        censored=selection.censored,
        min_kept=min_kept,
        notes=(*notes_of(selection), *([arguments_note(selection.max_t)] if schedulers is None else [])),
    )


def goal_of(metric: str | None, mode: Mode | None, goals: tuple[Metric, Modes]) -> tuple[str, Mode]:
    """Return the metric to compare trials by, and its mode.

    Parameters
    ----------
    metric, mode : str, optional
        What the user has given.
    goals : tuple
        The metrics and the modes of the experiment.

    Raises
    ------
    ConfigError
        If they are not one metric and its mode.
    """
    metric_or_metrics = metric or goals[0]
    if not isinstance(metric_or_metrics, str):
        hint = "" if goals[0] is None else f", one of {goals[0]}"
        raise ConfigError(
            f"metric must be the name of a metric{hint}, got {metric_or_metrics!r}. "
            'Give both, for example metric="loss" and mode="min".'
        )
    check_goals(metric_or_metrics, mode)
    given: object = mode or goals[1]
    if isinstance(goals[0], list) and isinstance(given, list):
        given = dict(zip(goals[0], given, strict=True)).get(metric_or_metrics)
    return metric_or_metrics, checked_mode(given)


def _check_reported(trials: Sequence[RecordedTrial], metric: str) -> None:
    rows = [row for trial in trials for row in trial.rows]
    if rows and all(lookup(row, metric) is None for row in rows):
        own = sorted({name for row in rows for name in row if not is_auto_filled(name)})
        hint = f"The trials report: {', '.join(own)}." if own else ""
        check(False, "metric", "a metric that the trials report", metric, hint)
