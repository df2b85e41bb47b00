"""Whole experiments in virtual time, to see what a scheduler would have saved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from dasktune.callback import TrialPlaces
from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import ConfigError, StorageError, check
from dasktune.results import ResultGrid
from dasktune.runner import ExperimentStore, TrialRunner
from dasktune.runner.build import build_callbacks, build_experiment
from dasktune.runner.naming import Naming
from dasktune.storage.beginning import check_beginning
from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.experiment_store import ExperimentStore as StoredExperiment
from dasktune.testing.clock import ManualClock
from dasktune.testing.memory_store import MemoryStore
from dasktune.testing.places import Cluster
from dasktune.testing.simulated_executor import SimulatedTrialExecutor
from dasktune.testing.trial_kind import GeneratorTrials, SimulatedTrainable
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.resources import as_placement_group

__all__ = ["simulate"]


def simulate(
    trainable: SimulatedTrainable,
    *,
    param_space: Mapping[str, Any] | None = None,
    tune_config: TuneConfig | None = None,
    run_config: RunConfig | None = None,
    slots: int = 1,
    workers: Cluster | None = None,
    resources: Any = None,
    start_overhead: float = 0.0,
    lose: Mapping[float, int] | None = None,
    saves_on_demand: bool = False,
    store: ExperimentStore | None = None,
) -> ResultGrid:
    """Run an experiment in virtual time, with the same runner, schedulers and journal.

    Parameters
    ----------
    trainable : callable
        A generator function ``fn(config)`` that yields ``(metrics, seconds)`` for each step; or
        ``fn(config, checkpoint)`` that yields ``(metrics, seconds, checkpoint)``, where
        `checkpoint` is anything that it needs to go on from there, and None at the first start. A
        step whose checkpoint is None saves none. What breaks these rules fails the trial;
        :class:`WorkerDied` ends its worker.
    param_space : mapping, optional
        The search space.
    tune_config : TuneConfig, optional
        What is searched for, and how.
    run_config : RunConfig, optional
        When trials end and what failures cost. Nothing is written to its ``storage_path``. A step
        that takes longer than ``report_timeout_s`` fails its trial after so many virtual seconds.
        With ``restore``, what trials get at first as `checkpoint` is the dict that
        `Checkpoint.from_dict` was given, or the `Checkpoint` itself if it was made otherwise.
    slots : int, default=1
        How many trials run at a time. Not used with `workers`.
    workers : sequence of int or WorkerCapacity, or mapping, optional
        The workers of the cluster, in CPUs or in full: trials are placed on them as on a real one.
        Or such lists by the virtual seconds from which they hold, the first of them 0: a cluster
        that grows and shrinks. A worker is known by its address, or its place in the list.
    resources : mapping, Resources, PlacementGroupFactory or callable, optional
        What each trial asks for, as for `with_resources`; one CPU by default.
    start_overhead : float, default=0.0
        Seconds from the start of a trial to its first step.
    lose : mapping of float to int, optional
        Virtual seconds -> number of the trial, in order of start, whose worker dies then, with all
        trials that are there.
    saves_on_demand : bool, default=False
        Whether what a step yields as its checkpoint is saved only when that is asked for, as with
        the class API.
    store : ExperimentStore, optional
        Where the journal goes; forgotten by default.

    Returns
    -------
    ResultGrid
        As `Tuner.fit` returns it. Times are virtual seconds from 0; checkpoints are values of the
        simulation and cannot be opened.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or `run_config` asks for files: a simulation exports
        nothing, and the trainable says by what it yields when it saves.
    PreflightError
        If the workers will never have room for a trial.

    Examples
    --------
    >>> import dasktune as tune
    >>> def curve(config):
    ...     for epoch in range(10):
    ...         yield {"loss": config["lr"] / (epoch + 1)}, 60.0
    >>> results = simulate(
    ...     curve,
    ...     param_space={"lr": tune.uniform(0.1, 1)},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=8, seed=0),
    ...     slots=4,
    ... )
    >>> len(results), results.get_best_result().metrics["training_iteration"]
    (8, 10)
    """
    tune_config = tune_config or TuneConfig()
    run_config = run_config or RunConfig()
    kind = GeneratorTrials(trainable, saves_on_demand=saves_on_demand)
    _check_files(run_config)
    clock = ManualClock()
    executor = SimulatedTrialExecutor(
        kind,
        clock=clock,
        slots=slots,
        workers=workers,
        start_overhead=start_overhead,
        lose=lose,
        beginning=_beginning(kind, run_config),
        report_timeout_s=run_config.failure_config.report_timeout_s,
    )
    fixed = None if callable(resources) else as_placement_group(resources)
    experiment = build_experiment(tune_config, run_config, param_space or {})
    executor.folder_of = lambda trial_id: experiment.trials[trial_id].folder
    places = _places(trainable, param_space or {})
    runner = TrialRunner(
        experiment,
        executor,
        store=MemoryStore() if store is None else store,
        clock=clock,
        resources_for=lambda config: fixed or as_placement_group(resources(config)),
        # Nobody can go on from what is forgotten.
        checkpoint_period=inf if store is None else run_config.checkpoint_period,
        naming=Naming(tune_config, places, experiment.trials),
        callbacks=build_callbacks(tune_config, run_config, experiment, places),
    )
    runner.run()
    return ResultGrid.from_trials(
        experiment.trials.values(),
        "simulation",
        tune_config.metric,
        tune_config.mode,
        _refuse_to_open,
        run_config.checkpoint_config.retention,
        store.storage if isinstance(store, StoredExperiment) else None,
    )


def _places(trainable: SimulatedTrainable, space: Mapping[str, Any]) -> TrialPlaces:
    name = getattr(trainable, "__name__", type(trainable).__name__)
    return TrialPlaces(trainable_name=name, storage=None, checkpoint=_nowhere, space=space)


def _beginning(kind: GeneratorTrials, run_config: RunConfig) -> Any:
    """Return what trials get as their first checkpoint."""
    given = run_config.restore
    if given is None:
        return None
    hint = "Write def trainable(config, checkpoint)."
    rule = "left out where the trainable takes no checkpoint"
    check(kind.takes_checkpoints, "restore", rule, given, hint)
    options = run_config.storage_options or {}
    checkpoint = check_beginning(given, run_config.storage_url, options)
    with suppress(ConfigError):  # it is one of other files
        return checkpoint.to_dict()
    return checkpoint


def _check_files(run_config: RunConfig) -> None:
    """Refuse what would write files that a simulation has not."""
    formats, rule = run_config.export_formats, "left out of a simulation"
    check(not formats, "export_formats", rule, formats, "Its trials have nothing to export.")
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        given = getattr(run_config.checkpoint_config, name)
        hint = "A simulated trainable saves by what it yields; see saves_on_demand."
        check(not given, name, rule, given, hint)


def _nowhere(record: CheckpointRecord) -> Checkpoint:
    return Checkpoint(f"memory://simulation/{record.path}")


def _refuse_to_open(record: CheckpointRecord) -> Checkpoint:
    raise StorageError(f"{record.path} is a checkpoint of a simulation and has no files")
