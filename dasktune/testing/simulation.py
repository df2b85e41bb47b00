"""`simulate`: run a whole experiment in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from dasktune.callback import TrialStorage
from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import ConfigError, StorageError, check
from dasktune.in_process.manual_clock import ManualClock
from dasktune.in_process.places import Cluster
from dasktune.in_process.simulated_executor import SimulatedTrialExecutor
from dasktune.in_process.trial_kind import GeneratorTrials, SimulatedTrainable
from dasktune.results.past_lookup import read_earlier_experiments, with_past
from dasktune.runner import StorePort, TrialRunner
from dasktune.runner.build import build_callbacks, build_experiment
from dasktune.runner.naming import Naming
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.initial import check_initial_checkpoint
from dasktune.storage.experiment.experiment_store import ExperimentStore as StoredExperiment
from dasktune.testing.memory_store import MemoryStore
from dasktune.trainable.api.binding import code_address, trainable_name
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.resources import as_placement_group
from dasktune.tuner.result_grid import ResultGrid


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
    store: StorePort | None = None,
) -> ResultGrid:
    """Run an experiment in virtual time, with the same runner, schedulers and journal.

    Parameters
    ----------
    trainable : callable
        A generator function ``fn(config)`` that yields ``(metrics, seconds)`` for each step; or
        ``fn(config, checkpoint)`` that yields ``(metrics, seconds, checkpoint)``, where
        `checkpoint` is any state that the trial can resume from, and None at the first start. A
        step whose checkpoint is None saves none. A step that breaks these rules fails the trial;
        :class:`WorkerDied` ends its worker.
    param_space : mapping, optional
        The search space.
    tune_config : TuneConfig, optional
        The metric to optimise, the searcher, the scheduler and the number of trials.
    run_config : RunConfig, optional
        When trials stop and how many failures they may have. Nothing is written to its
        ``storage_path``. A step that takes longer than ``report_timeout_s`` fails its trial after
        that virtual time. With ``restore``, the first `checkpoint` of a trial is the dict of
        `Checkpoint.from_dict`, or the `Checkpoint` if it was created otherwise.
    slots : int, default=1
        The number of trials that run at a time. Not used with `workers`.
    workers : sequence of int or WorkerCapacity, or mapping, optional
        The number of CPUs or the capacity of each worker; trials are placed on them as on a real
        cluster. For a cluster that grows and shrinks, give a mapping from virtual times in seconds
        to such lists. Each list holds from its time on; one is for 0. A worker is identified by its
        address, or its position in the list.
    resources : mapping, Resources, PlacementGroupFactory or callable, optional
        The resources of each trial, as for `with_resources`; one CPU by default.
    start_overhead : float, default=0.0
        Seconds from the start of a trial to its first step.
    lose : mapping of float to int, optional
        Maps a virtual time in seconds to the number of a trial, in order of start. The trial's
        worker dies at that time, and all trials on it are lost.
    saves_on_demand : bool, default=False
        Whether the checkpoint of a step is saved on demand only, as for class trainables.
    store : StorePort, optional
        The store for the journal; by default it is kept in memory and discarded.

    Returns
    -------
    ResultGrid
        The results, as from `Tuner.fit`. Times are virtual seconds from 0. Checkpoints are values
        of the simulation and cannot be opened.

    Raises
    ------
    ConfigError
        If an argument is invalid, or `run_config` sets `export_formats`, `checkpoint_frequency` or
        `checkpoint_at_end`: a simulation has no exports, and saves only the checkpoints that the
        trainable yields.
    PreflightError
        If the workers can never have room for a trial.

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
    name, space = trainable_name(trainable), param_space or {}
    code = code_address(trainable)
    tune_config = with_past(tune_config, run_config, space, trainable=name, code=code)
    read_earlier_experiments(tune_config.search_alg)
    experiment = build_experiment(tune_config, run_config, param_space or {})
    executor.folder_of = lambda trial_id: experiment.trials[trial_id].folder
    trial_storage = _trial_storage(trainable, param_space or {})
    runner = TrialRunner(
        experiment,
        executor,
        store=MemoryStore() if store is None else store,
        clock=clock,
        resources_for=lambda config: fixed or as_placement_group(resources(config)),
        # An experiment in memory cannot be restored, so it needs no snapshots.
        checkpoint_period=inf if store is None else run_config.checkpoint_period,
        naming=Naming(tune_config, trial_storage, experiment.trials),
        callbacks=build_callbacks(tune_config, run_config, experiment, trial_storage),
    )
    runner.run()
    return ResultGrid.from_trials(
        experiment.trials.values(),
        "simulation",
        tune_config.metric,
        tune_config.mode,
        _refuse_to_open,
        run_config.checkpoint_config.retention,
        storage=store.storage if isinstance(store, StoredExperiment) else None,
    )


def _trial_storage(trainable: SimulatedTrainable, space: Mapping[str, Any]) -> TrialStorage:
    name = getattr(trainable, "__name__", type(trainable).__name__)
    return TrialStorage(trainable_name=name, storage=None, checkpoint=_nowhere, space=space)


def _beginning(kind: GeneratorTrials, run_config: RunConfig) -> Any:
    """Return the initial checkpoint of the trials."""
    given = run_config.restore
    if given is None:
        return None
    hint = "Write def trainable(config, checkpoint)."
    rule = "left out, as the trainable takes no checkpoint"
    check(kind.takes_checkpoints, "restore", rule, given, hint)
    options = run_config.storage_options or {}
    checkpoint = check_initial_checkpoint(given, run_config.storage_url, options)
    with suppress(ConfigError):  # the checkpoint has other files than a dict
        return checkpoint.to_dict()
    return checkpoint


def _check_files(run_config: RunConfig) -> None:
    """Raise ConfigError for settings that would write files."""
    formats, rule = run_config.export_formats, "left out of a simulation"
    check(not formats, "export_formats", rule, formats, "Simulated trials have nothing to export.")
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        given = getattr(run_config.checkpoint_config, name)
        hint = "A simulated trainable yields its checkpoints; see saves_on_demand."
        check(not given, name, rule, given, hint)


def _nowhere(record: CheckpointRecord) -> Checkpoint:
    return Checkpoint(f"memory://simulation/{record.path}")


def _refuse_to_open(record: CheckpointRecord) -> Checkpoint:
    raise StorageError(f"{record.path} is a checkpoint of a simulation and has no files")
