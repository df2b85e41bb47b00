"""Builds an experiment and its callbacks from the user's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from numpy.random import SeedSequence

from dasktune.callback import CallbackList, MissedEvents, TrialStorage, check_callbacks
from dasktune.config import RunConfig, TuneConfig
from dasktune.config.signatures import check_scheduler, check_searcher, check_stopper
from dasktune.errors import ConfigError, TuneError, check
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.runner.elastic_ranks import ElasticTimes
from dasktune.schedulers import FIFOScheduler, TrialScheduler, create_scheduler
from dasktune.search import (
    BasicVariantGenerator,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
    create_searcher,
)
from dasktune.search.search_algorithm import SearchSpec
from dasktune.stopper import (
    CombinedStopper,
    CriteriaStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    as_stopper,
)
from dasktune.storage.fs.spill_file import SpillFile
from dasktune.trainable.api.binding import default_resources
from dasktune.trainable.api.distributed import rank_settings
from dasktune.trial.resources import PlacementGroupFactory

logger = logging.getLogger(__name__)


def build_experiment(
    tune_config: TuneConfig, run_config: RunConfig, param_space: Mapping[str, Any]
) -> ExperimentMachine:
    """Build the experiment of a configuration.

    Parameters
    ----------
    tune_config : TuneConfig
        The metric, the search algorithm, the scheduler and the number of trials.
    run_config : RunConfig
        Stop criteria, limits of failures and checkpoints.
    param_space : mapping
        The search space.

    Raises
    ------
    ConfigError
        If the metric, the policies and the search space do not fit together.
    """
    check_callbacks(run_config.callbacks)
    searching, running = _seed_sequence(tune_config.seed).spawn(2)
    search = _search_algorithm(tune_config.search_alg)
    search.setup(
        SearchSpec(
            space=param_space,
            num_samples=tune_config.num_samples,
            metric=tune_config.metric,
            mode=tune_config.mode,
            seed=searching,
            max_concurrent=tune_config.max_concurrent_trials or 0,
        )
    )
    stop = as_stopper(run_config.stop)
    check_stopper(stop)
    criteria, stopper = _split(stop, tune_config.time_budget)
    failure = run_config.failure_config
    metric, mode = tune_config.single_goal
    settings = ExperimentSettings(
        metric=metric,
        mode=mode,
        max_failures=failure.max_failures,
        fail_fast=failure.fail_fast,
        max_total_failures=failure.max_total_failures,
        max_worker_losses=failure.max_worker_losses,
        max_concurrent=tune_config.max_concurrent_trials or 0,
        retention=run_config.checkpoint_config.retention,
    )
    return ExperimentMachine(
        settings,
        search=search,
        scheduler=_scheduler(tune_config.scheduler),
        criteria=criteria,
        stopper=stopper,
        seed=running,
        blocks=SpillFile(),
    )


def build_callbacks(
    tune_config: TuneConfig,
    run_config: RunConfig,
    experiment: ExperimentMachine,
    trial_storage: TrialStorage,
    missed: MissedEvents | None = None,
) -> CallbackList | None:
    """Set up the callbacks of a session.

    Parameters
    ----------
    tune_config, run_config : TuneConfig, RunConfig
        The configuration that the ``setup`` of each callback gets.
    experiment : ExperimentMachine
        The experiment that the callbacks observe.
    trial_storage : TrialStorage
        Where the trials keep their files.
    missed : MissedEvents, optional
        The events that the callbacks have missed, if the experiment is restored.

    Returns
    -------
    CallbackList or None
        None if there are no callbacks.
    """
    if not run_config.callbacks:
        return None
    callbacks = CallbackList(run_config.callbacks, experiment, trial_storage)
    callbacks.setup(
        stop=run_config.stop,
        num_samples=tune_config.num_samples,
        total_num_samples=experiment.search.total_samples,
    )
    if missed is not None:
        callbacks.replay_missed(missed)
    return callbacks


def first_config(experiment: ExperimentMachine) -> dict[str, Any] | None:
    """Return the first trial's configuration, if that can be found without side effects.

    Parameters
    ----------
    experiment : ExperimentMachine
        An experiment that has not started.

    Returns
    -------
    dict or None
        None for a searcher, which may change its state or write files when it is called.

    Raises
    ------
    ConfigError
        If the values of the space cannot be resolved, or a function in it raises.
    """
    search = experiment.search
    if not isinstance(search, BasicVariantGenerator):
        return None
    before = search.state_dict()
    config = search.next_trial(experiment.next_trial_id).config
    search.load_state_dict(before)
    return config


def required_metrics(experiment: ExperimentMachine, config: TuneConfig) -> tuple[str, ...]:
    """Return the metrics that every result must have.

    Parameters
    ----------
    experiment : ExperimentMachine
        The experiment. Its scheduler may require metrics.
    config : TuneConfig
        The configuration that holds the metrics to optimise.
    """
    if not config.strict_metrics:
        return ()
    metric = config.metric
    wanted = (*(metric if isinstance(metric, list) else [metric]), experiment.scheduler.metric)
    return tuple(dict.fromkeys(name for name in wanted if name is not None))


def _seed_sequence(seed: int | SeedSequence | None) -> SeedSequence:
    if not isinstance(seed, SeedSequence):
        return SeedSequence(seed)
    # A SeedSequence counts its spawned children. With a copy, a configuration that is used twice
    # gives the same children both times.
    return SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size)


def _scheduler(given: object) -> TrialScheduler:
    if given is None:
        return FIFOScheduler()
    if isinstance(given, str):
        return create_scheduler(given)
    if isinstance(given, TrialScheduler):
        check_scheduler(given)
        return _own(given)
    raise ConfigError(
        f"scheduler must be a TrialScheduler or the name of one, got {given!r}. "
        "Write TuneConfig(scheduler=ASHAScheduler())."
    )


def _own(scheduler: TrialScheduler) -> TrialScheduler:
    """Return a copy of a scheduler, so that its state does not leak into the next experiment."""
    try:
        return deepcopy(scheduler)
    except Exception as error:  # a scheduler may hold objects of any kind
        logger.warning(
            "%s cannot be copied (%s: %s): create a new one for each experiment",
            type(scheduler).__name__,
            type(error).__name__,
            error,
        )
        return scheduler


def _search_algorithm(given: object) -> SearchAlgorithm:
    if given is None:
        return BasicVariantGenerator()
    if isinstance(given, str):
        given = create_searcher(given)
    if isinstance(given, SearchAlgorithm):
        return given
    if isinstance(given, Searcher):
        check_searcher(given)
        return SearchGenerator(given)
    raise ConfigError(
        f"search_alg must be a Searcher, a SearchAlgorithm or the name of one, got {given!r}. "
        "Leave it out for random and grid search."
    )


def _split(stop: Stopper, time_budget: float | None) -> tuple[Stopper, Stopper]:
    """Separate the criteria that depend on nothing but the result from all other stoppers."""
    members = list(stop.stoppers) if isinstance(stop, CombinedStopper) else [stop]
    if time_budget is not None:
        members.append(TimeoutStopper(time_budget))
    criteria: list[Stopper] = [member for member in members if isinstance(member, CriteriaStopper)]
    others = [member for member in members if not isinstance(member, CriteriaStopper | NoopStopper)]
    return _combined(criteria), _combined(others)


def _combined(members: list[Stopper]) -> Stopper:
    # The stopper is called for every result, and most experiments have none: keep it simple.
    if len(members) == 1:
        return members[0]
    return CombinedStopper(*members) if members else NoopStopper()


def resources_for(trainable: Any, config: dict[str, Any]) -> PlacementGroupFactory:
    """Return the resource request of a trial.

    Parameters
    ----------
    trainable : type or callable
        The user's trainable.
    config : dict
        The trial's configuration.

    Raises
    ------
    ConfigError
        If the user's resource function fails.
    """
    try:
        return default_resources(trainable, config)
    except TuneError:
        raise
    except Exception as error:
        raise ConfigError(
            f"resources must be a request for every configuration, got {error!r} from their "
            f"function for {config!r}. Let it return a dict such as {{'cpu': 1}}."
        ) from error


def first_resources(trainable: Any, experiment: ExperimentMachine) -> PlacementGroupFactory | None:
    """Return the first trial's resource request, or None if it is not known yet.

    Parameters
    ----------
    trainable : type or callable
        The user's trainable.
    experiment : ExperimentMachine
        An experiment that has not started in this session.
    """
    for trial in experiment.trials.values():
        if not trial.status.is_final:
            return trial.base_resources
    config = first_config(experiment)
    if config is not None:
        return resources_for(trainable, config)
    try:
        return default_resources(trainable, {})
    except (LookupError, TypeError, AttributeError):
        return None  # the function needs a configuration


def check_ranks(trainable: Any, tune_config: TuneConfig) -> None:
    """Reject a scheduler that changes the resources of trials whose ranks may become fewer.

    Parameters
    ----------
    trainable : type or callable
        The user's trainable.
    tune_config : TuneConfig
        The configuration that holds the scheduler.

    Raises
    ------
    ConfigError
        If the trainable has `min_ranks`, and the scheduler changes resources.
    """
    settings, scheduler = rank_settings(trainable), tune_config.scheduler
    least = None if settings is None else settings.min_ranks
    resizes = isinstance(scheduler, TrialScheduler) and scheduler.follows_cluster
    hint = "Leave out min_ranks, or use another scheduler: both would change the number of ranks."
    check(least is None or not resizes, "min_ranks", f"None with {type(scheduler).__name__}", least, hint)


def elastic_times(trainable: Any) -> ElasticTimes | None:
    """Return how long a trial waits for all of its ranks, and trains with fewer.

    Parameters
    ----------
    trainable : type or callable
        The user's trainable.

    Examples
    --------
    >>> from dasktune import with_ranks
    >>> elastic_times(with_ranks(print, 4, min_ranks=2, grow_after_s=5))
    ElasticTimes(wait_s=10.0, grow_after_s=5)
    """
    settings = rank_settings(trainable)
    return None if settings is None else ElasticTimes(settings.wait_for_ranks_s, settings.grow_after_s)


def check_saving(trainable: Any, run_config: RunConfig) -> None:
    """Reject settings of a function trainable that only a class trainable supports.

    Parameters
    ----------
    trainable : type or callable
        The user's trainable.
    run_config : RunConfig
        The configuration that holds the settings.

    Raises
    ------
    ConfigError
        If the configuration has such a setting.
    """
    is_class, rule = isinstance(trainable, type), "left out for a function"
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        value = getattr(run_config.checkpoint_config, name)
        hint = "A function saves by itself: report(metrics, checkpoint=...)."
        check(is_class or not value, name, rule, value, hint)
    formats = run_config.export_formats
    hint = "A class has _export_model(). A function writes files in a checkpoint."
    check(is_class or not formats, "export_formats", rule, formats, hint)
