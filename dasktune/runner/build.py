"""From what the user configured to an experiment that can run anywhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from numpy.random import SeedSequence

from dasktune.callback import CallbackList, Missed, TrialPlaces, check_callbacks
from dasktune.config import RunConfig, TuneConfig
from dasktune.errors import ConfigError, TuneError, check
from dasktune.experiment import Experiment, ExperimentSettings
from dasktune.runner.hooks import check_scheduler, check_searcher, check_stopper
from dasktune.schedulers import FIFOScheduler, TrialScheduler, create_scheduler
from dasktune.search import (
    BasicVariantGenerator,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
    create_searcher,
)
from dasktune.search.searcher import SearchSpec
from dasktune.stopper import (
    CombinedStopper,
    CriteriaStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    as_stopper,
)
from dasktune.trainable.interface import default_resources
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "build_callbacks",
    "build_experiment",
    "check_saving",
    "first_config",
    "first_resources",
    "required_metrics",
    "resources_for",
]

logger = logging.getLogger(__name__)


def build_experiment(
    tune_config: TuneConfig, run_config: RunConfig, param_space: Mapping[str, Any]
) -> Experiment:
    """Make the experiment that a configuration describes.

    Parameters
    ----------
    tune_config : TuneConfig
        What is searched for, and how.
    run_config : RunConfig
        When trials end and what failures cost.
    param_space : mapping
        The search space.

    Raises
    ------
    ConfigError
        If the parts do not fit together.
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
    return Experiment(
        settings,
        search=search,
        scheduler=_scheduler(tune_config.scheduler),
        criteria=criteria,
        stopper=stopper,
        seed=running,
    )


def build_callbacks(
    tune_config: TuneConfig,
    run_config: RunConfig,
    experiment: Experiment,
    places: TrialPlaces,
    missed: Missed | None = None,
) -> CallbackList | None:
    """Make a session's callbacks ready.

    Parameters
    ----------
    tune_config, run_config : TuneConfig, RunConfig
        What they are told of it.
    experiment : Experiment
        What they hear of.
    places : TrialPlaces
        Where its trials keep things.
    missed : Missed, optional
        What they have missed, if the experiment is restored.

    Returns
    -------
    CallbackList or None
        None if there are none.
    """
    if not run_config.callbacks:
        return None
    callbacks = CallbackList(run_config.callbacks, experiment, places)
    callbacks.setup(
        stop=run_config.stop,
        num_samples=tune_config.num_samples,
        total_num_samples=experiment.search.total_samples,
    )
    if missed is not None:
        callbacks.catch_up(missed)
    return callbacks


def first_config(experiment: Experiment) -> dict[str, Any] | None:
    """Return the first trial's configuration, if asking for it leaves no trace.

    Parameters
    ----------
    experiment : Experiment
        One that has not begun.

    Returns
    -------
    dict or None
        None if a searcher must be asked, which might learn from the question, or write it down.

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


def required_metrics(experiment: Experiment, config: TuneConfig) -> tuple[str, ...]:
    """Return what every result must hold.

    Parameters
    ----------
    experiment : Experiment
        Has the scheduler.
    config : TuneConfig
        Has the metrics.
    """
    if not config.strict_metrics:
        return ()
    metric = config.metric
    wanted = (*(metric if isinstance(metric, list) else [metric]), experiment.scheduler.metric)
    return tuple(dict.fromkeys(name for name in wanted if name is not None))


def _seed_sequence(seed: int | SeedSequence | None) -> SeedSequence:
    if not isinstance(seed, SeedSequence):
        return SeedSequence(seed)
    # A sequence counts the children that it spawned: one that is used twice must give the same.
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
    """Return a copy: what it learns from one experiment must not decide about the next."""
    try:
        return deepcopy(scheduler)
    except Exception as error:  # it may hold anything
        logger.warning(
            "%s cannot be copied (%s: %s): make a new one for each experiment",
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
    """Part the criteria that depend on nothing but the result from all other stoppers."""
    members = list(stop.stoppers) if isinstance(stop, CombinedStopper) else [stop]
    if time_budget is not None:
        members.append(TimeoutStopper(time_budget))
    criteria: list[Stopper] = [member for member in members if isinstance(member, CriteriaStopper)]
    others = [member for member in members if not isinstance(member, CriteriaStopper | NoopStopper)]
    return _combined(criteria), _combined(others)


def _combined(members: list[Stopper]) -> Stopper:
    # Each is called for every result, and mostly there is none.
    if len(members) == 1:
        return members[0]
    return CombinedStopper(*members) if members else NoopStopper()


def resources_for(trainable: Any, config: dict[str, Any]) -> PlacementGroupFactory:
    """Return what a trial asks for.

    Parameters
    ----------
    trainable : type or callable
        The user's.
    config : dict
        Of the trial.

    Raises
    ------
    ConfigError
        If the user's own function of the configuration fails.
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


def first_resources(trainable: Any, experiment: Experiment) -> PlacementGroupFactory | None:
    """Return what the first trial asks for, or None if that cannot be told yet.

    Parameters
    ----------
    trainable : type or callable
        The user's.
    experiment : Experiment
        Before it goes on.
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
        return None  # the function looks at a configuration


def check_saving(trainable: Any, run_config: RunConfig) -> None:
    """Check that a function is not asked to save what only a class can.

    Parameters
    ----------
    trainable : type or callable
        The user's.
    run_config : RunConfig
        What is to be saved.

    Raises
    ------
    ConfigError
        If it is.
    """
    is_class, rule = isinstance(trainable, type), "left out for a function"
    for name in ("checkpoint_frequency", "checkpoint_at_end"):
        value = getattr(run_config.checkpoint_config, name)
        hint = "A function saves by itself: report(metrics, checkpoint=...)."
        check(is_class or not value, name, rule, value, hint)
    formats = run_config.export_formats
    hint = "A class has _export_model(). A function writes files in a checkpoint."
    check(is_class or not formats, "export_formats", rule, formats, hint)
