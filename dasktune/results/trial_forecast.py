"""`forecast`: replay recorded trials under other trial schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.forecast.contenders import Schedulers, arguments_note, contenders
from dasktune.forecast.recorded_trial import RecordedTrial, busy_workers, select_full
from dasktune.forecast.what_if import WhatIf, notes_of, replay_all
from dasktune.results.journal_trials import load_trials
from dasktune.results.result import checked_mode, is_auto_filled
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.experiment.tuner_json import SETUP_FILE, TunerFile
from dasktune.storage.fs.redaction import reading
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, lookup
from dasktune.trial.status import PublicStatus

#: ``progress(done, total)`` is called after each replay.
Progress = Callable[[int, int], object]

#: Searchers whose suggestions depend on no result, by name and by class.
_LEARN_NOTHING: Final = frozenset(
    {None, "random", "variant_generator", "quasi_random", "BasicVariantGenerator", "QuasiRandomSearch"}
)


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


def recorded_trials(storage: Storage) -> list[RecordedTrial]:
    """Return the trials of an experiment, in the order of their creation.

    Nothing is unpickled. The experiment may still be running.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    ConfigError
        If trials are clones of population based training.
    StorageError
        If the journal is damaged, or missing although the experiment had trials.
    """
    trials = load_trials(storage)
    clones = sum(bool(trial.ancestry) for trial in trials)
    rule = "without clones of population based training"
    check(not clones, "experiment", rule, f"{clones} clones", "A clone has no learning curve of its own.")
    stays = stays_of(JournalReader(storage))
    return [
        RecordedTrial(
            rows=trial.history,
            config=trial.config,
            status=trial.public_status,
            reason=trial.reason,
            stopped_early=trial.stopped_early,
            stays=stays.get(trial.trial_id, ()),
        )
        for trial in trials
    ]


def stays_of(records: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return for each trial when it began and ended to run, in seconds on the driver's clock.

    A trial that runs at the last record has no end yet: this stay is left out.

    Parameters
    ----------
    records : iterable of mapping
        The records of a journal, in order.

    Examples
    --------
    >>> def record(time, status):
    ...     return {"event": "TrialPaused", "trial_id": "a", "time": time, "status": status}
    >>> stays_of([record(1.0, "RUNNING"), record(2.0, "RUNNING"), record(4.0, "PAUSED")])
    {'a': [(1.0, 4.0)]}
    """
    found: dict[str, list[tuple[float, float]]] = {}
    running: dict[str, float] = {}
    last = 0.0
    for record in records:
        now, status = float(record["time"]), record.get("status")
        if record["event"] == "SessionBegan":
            # The driver before has died: what ran then has run at least until its last record.
            for name, began in running.items():
                found.setdefault(name, []).append((began, last))
            running.clear()
        last = now
        if status is None:
            continue
        name = record["trial_id"]
        if status == PublicStatus.RUNNING:
            running.setdefault(name, now)
        elif name in running:
            found.setdefault(name, []).append((running.pop(name), now))
    return found


def check_searcher(storage: Storage) -> None:
    """Refuse configurations that depend on the results, and so on the scheduler.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.

    Raises
    ------
    ConfigError
        If the searcher of the experiment learns from results, or may do so.
    StorageError
        If ``tuner.json``, which names the searcher, cannot be read.
    """
    with reading(SETUP_FILE, storage):
        if not storage.exists(SETUP_FILE):
            return  # Some experiments have no such file, such as simulated ones.
    entry = TunerFile.read(storage).entries.get("tune_config.search_alg", {})
    searcher = entry.get("limits") or entry.get("type") or entry.get("value")
    if searcher not in _LEARN_NOTHING:
        raise ConfigError(
            f"experiment must have random, quasi-random or grid search, got {searcher!r}, which learns "
            "from results: under another scheduler it would have suggested other configurations. "
            "Replay an experiment with random search, or give ignore_searcher=True (--ignore-searcher) to "
            "replay these configurations as if they had been drawn at random."
        )
