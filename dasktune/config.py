"""What a user may settle about an experiment, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from math import isfinite
from typing import Any, Final, Literal

from numpy.random import SeedSequence

from dasktune.errors import check, without_passwords
from dasktune.rules import (
    LONGEST_NAME,
    check_bool,
    check_seconds,
    is_int,
    is_policy,
    is_port,
    is_safe_name,
    is_text,
)
from dasktune.stopper import as_stopper
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals, number
from dasktune.trial.retention import Retention
from dasktune.workers import WorkerFilter, check_workers

__all__ = [
    "DEFAULT_METRIC",
    "DEFAULT_STORAGE_PATH",
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "TuneConfig",
]

#: What is optimised when only a mode is given: the number that a function returns or yields bare.
DEFAULT_METRIC: Final = "_metric"

#: Where experiments are kept when the user names no place.
DEFAULT_STORAGE_PATH: Final = "~/dasktune_results"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """What is searched for, and how.

    Parameters
    ----------
    metric : str or list of str, optional
        What is to be optimised, as the trainable reports it; nested names are joined by ``/``.
        ``"_metric"`` if only `mode` is given. A list is several goals at once, for a `search_alg`
        that knows how; a scheduler then needs a metric of its own.
    mode : {"min", "max"} or list of them, optional
        Which way `metric` is better; a list, one for each, if it is one. Needed with `metric`.
    num_samples : int, default=1
        How many samples of the search space are tried, each with all points of its grids; -1 goes
        on until something else ends it.
    search_alg : Searcher, SearchAlgorithm or str, optional
        Proposes configurations; random and grid search by default.
    scheduler : TrialScheduler or str, optional
        Stops, pauses and prioritises trials; first in, first out by default. An experiment copies
        it, so that the same one may be given to others.
    max_concurrent_trials : int, optional
        Most trials that run at a time, and most that a search algorithm has unfinished. No limit
        but the cluster's by default.
    time_budget_s : float or timedelta, optional
        Seconds after which the experiment ends.
    reuse_actors : bool, default=True
        Run the next trial in the place of the last one, on the same object if it is of a class
        whose ``reset_config`` returns True. False gives every trial a new place and object.
    strict_metrics : bool, default=True
        Whether a result that lacks `metric`, or what the scheduler decides by, fails its trial. If
        not, such a result has the worst value there is.
    seed : int or SeedSequence, optional
        The source of all randomness. The same seed gives the same configurations and decisions.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> TuneConfig(metric="loss", mode="min", num_samples=20).num_samples
    20
    >>> TuneConfig(num_samples=0)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: num_samples must be a positive int, or -1 for no end, got 0
    """

    metric: Metric = None
    mode: Modes = None
    num_samples: int = 1
    search_alg: Any = None
    scheduler: Any = None
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = True
    strict_metrics: bool = True
    seed: int | SeedSequence | None = None

    def __post_init__(self) -> None:
        self._check_goal()
        check(
            self.num_samples == -1 or is_int(self.num_samples, least=1),
            "num_samples",
            "a positive int, or -1 for no end",
            self.num_samples,
        )
        for name in ("search_alg", "scheduler"):
            policy = getattr(self, name)
            check(is_policy(policy), name, "an object or a name", policy, "A class must be called.")
        check(
            self.max_concurrent_trials is None or is_int(self.max_concurrent_trials, least=1),
            "max_concurrent_trials",
            "a positive int or None",
            self.max_concurrent_trials,
            "None is no limit.",
        )
        if self.time_budget is not None:
            check_seconds("time_budget_s", self.time_budget)
        check_bool("reuse_actors", self.reuse_actors)
        check_bool("strict_metrics", self.strict_metrics)
        check(
            self.seed is None or isinstance(self.seed, SeedSequence) or is_int(self.seed, least=0),
            "seed",
            "None, a non-negative int or a numpy SeedSequence",
            self.seed,
        )

    def _check_goal(self) -> None:
        if self.metric is None and self.mode is not None:
            object.__setattr__(self, "metric", DEFAULT_METRIC)
        check_goals(self.metric, self.mode)
        given = self.metric is None or self.mode is not None
        hint = f"Say which way {self.metric!r} is better."
        check(given, "mode", "'min' or 'max'", self.mode, hint)

    @property
    def single_goal(self) -> tuple[str | None, Mode | None]:
        """The metric and its mode, if it is one metric that is optimised; else twice None."""
        if isinstance(self.metric, list) or isinstance(self.mode, list):
            return None, None
        return self.metric, self.mode

    @property
    def time_budget(self) -> float | None:
        """The time budget in seconds, whichever way it was given."""
        budget = self.time_budget_s
        return budget.total_seconds() if isinstance(budget, timedelta) else budget


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are made, and which of them are kept.

    Parameters
    ----------
    num_to_keep : int, optional
        How many checkpoints of a trial are kept, the newest besides; all by default.
    checkpoint_score_attribute : str, optional
        The metric by which the best ones are kept; by default the newest are.
    checkpoint_score_order : {"max", "min"}, default="max"
        Which way that metric is better.
    checkpoint_frequency : int, default=0
        Save after each so many results, where dasktune saves (the class API); 0 is never.
    checkpoint_at_end : bool, optional
        Save when a trial ends; by default so with the class API, where dasktune saves. True also
        for a trial that is ended while it is paused: then `memory_limit` is of no effect.
    memory_limit : int, optional
        Bytes up to which the checkpoint of a paused trial stays in the memory of the workers and is
        not written to the storage; 0 always writes it. One that is lost with its worker, or with
        the driver, is made up for by the trial's last one in the storage. By default 100,000,000;
        or 0 while all workers are on one machine and the storage is a path there, because its disk
        is as quick.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc").num_to_keep
    2
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Mode = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        check(
            self.num_to_keep is None or is_int(self.num_to_keep, least=1),
            "num_to_keep",
            "a positive int or None",
            self.num_to_keep,
            "None keeps all.",
        )
        check(
            self.checkpoint_score_attribute is None or is_text(self.checkpoint_score_attribute),
            "checkpoint_score_attribute",
            "the name of a reported metric",
            self.checkpoint_score_attribute,
            "Which way it is better is checkpoint_score_order.",
        )
        check(
            self.checkpoint_score_order in ("min", "max"),
            "checkpoint_score_order",
            "'min' or 'max'",
            self.checkpoint_score_order,
        )
        check(
            is_int(self.checkpoint_frequency, least=0),
            "checkpoint_frequency",
            "a non-negative int",
            self.checkpoint_frequency,
            "0 never saves.",
        )
        if self.checkpoint_at_end is not None:
            check_bool("checkpoint_at_end", self.checkpoint_at_end)
        check(
            self.memory_limit is None or is_int(self.memory_limit, least=0),
            "memory_limit",
            "a number of bytes, at least 0, or None",
            self.memory_limit,
            "0 writes all checkpoints to the storage.",
        )

    @property
    def pause_limit(self) -> int:
        """Bytes up to which the checkpoint of a paused trial stays in memory."""
        # Else nobody could save what a trial was that is ended while it is paused.
        limit = 100_000_000 if self.memory_limit is None else self.memory_limit
        return 0 if self.checkpoint_at_end else limit

    @property
    def retention(self) -> Retention:
        """Which checkpoints are kept, as the experiment understands it."""
        return Retention(
            num_to_keep=self.num_to_keep,
            score_attribute=self.checkpoint_score_attribute,
            score_order=self.checkpoint_score_order,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """What failures cost.

    Parameters
    ----------
    max_failures : int, default=0
        How often the code of one trial may fail and be tried again from its last checkpoint, over
        the trial's life; -1 is for ever. Lost workers do not count.
    fail_fast : bool or "raise", default=False
        End everything when the first trial fails; ``"raise"`` raises the trial's own exception.
    max_worker_losses : int, default=3
        How often a trial may lose its worker without having made progress in between. What several
        trials lose together counts against none of them.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or if retries and `fail_fast` are both wanted.

    Examples
    --------
    >>> FailureConfig(max_failures=2, fail_fast=True)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: max_failures must be 0 with fail_fast=True, got 2. Choose one.
    """

    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False
    max_worker_losses: int = 3

    def __post_init__(self) -> None:
        check(
            is_int(self.max_failures, least=-1),
            "max_failures",
            "an int of at least -1",
            self.max_failures,
            "-1 tries again for ever.",
        )
        check(
            isinstance(self.fail_fast, bool) or self.fail_fast == "raise",
            "fail_fast",
            "True, False or 'raise'",
            self.fail_fast,
        )
        check(
            not (self.fail_fast and self.max_failures),
            "max_failures",
            f"0 with fail_fast={self.fail_fast!r}",
            self.max_failures,
            "Choose one.",
        )
        check(
            is_int(self.max_worker_losses, least=0),
            "max_worker_losses",
            "a non-negative int",
            self.max_worker_losses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How and where an experiment runs.

    Parameters
    ----------
    name : str, optional
        Name of the experiment and of its folder; by default made of the trainable's and the date.
    storage_path : str or path, optional
        Where experiments are kept: a folder or any fsspec URL. ``~/dasktune_results`` by default.
    storage_options : mapping, optional
        What fsspec needs for that URL. Never shown, because it may hold credentials.
    storage_patience : float, default=300.0
        Seconds for which a storage that fails is tried again, on driver and workers, before it
        costs a trial or the experiment. Trials go on meanwhile until too much waits to be stored.
    stop : mapping, callable, Stopper or list of Stopper, optional
        When a trial ends: ``{"training_iteration": 10}`` at the first result with at least that
        value.
    checkpoint_config : CheckpointConfig, optional
        When checkpoints are made and which are kept.
    failure_config : FailureConfig, optional
        What failures cost.
    checkpoint_period : float or "auto", default="auto"
        Seconds between two snapshots of the experiment's state, which make restoring quicker. By
        default at least 10, and so many that they take at most 5 % of the time.
    callbacks : list of Callback, optional
        Hear of what happens, in this order.
    verbose : int, default=1
        0 is silent, 1 shows one line of progress. 2 and 3 are taken too, and mean 1.
    heartbeat_timeout : float, default=30.0
        Seconds of silence after which a worker is given up for lost.
    driver_ttl : float, default=30.0
        Seconds of the driver's silence after which workers stop its trials.
    stop_grace : float, default=10.0
        Seconds that a trial has to come to its end when it is stopped.
    scheduler_wait : float, default=300.0
        Seconds to wait for a lost Dask scheduler to come back.
    code : {"auto", "installed"}, default="auto"
        Whether local modules that the workers lack travel to them, or all is installed there.
    isolation : {"auto", "thread", "process"}, default="auto"
        Whether a trial runs in a thread of its worker or in a process of its own, which can crash
        or be killed without harm to others. By default it is a process for trials that ask for a
        GPU or more than one CPU, else a thread.
    queue_trials : bool, optional
        Wait for a cluster that has no room yet for a single trial (True), or fail (False) after
        10 s. By default wait while there is no worker at all, and on an adaptive cluster object
        unless its new workers are known to be too small; else fail. Every 60 s a table tells what
        is asked and what is there.
    workers : list of str or callable, optional
        Addresses or names of the workers that trials may run on, or a function that is given a
        :class:`~dasktune.WorkerInfo` of each worker and returns whether they may, for workers that
        come later, too. All by default.
    priority : float, default=0
        Dask's priority of the experiment's tasks among everybody's: those of the highest come
        first. It matters while a trial waits for a worker that is busy with other tasks.
    declare_resources : bool, default=True
        Make Dask keep account of what trials use: workers that declare no ``CPU`` are made to
        declare one for each thread, and those that own GPUs and declare no ``GPU`` as many as they
        own. It outlasts the experiment. What a worker declares itself is never changed.
    dashboard : bool or int, default=False
        Show the experiment in a browser while it runs: at port 8788 or another free one (True), or
        at this port. Only this machine reaches it, and nothing can be changed there.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> RunConfig(name="first", stop={"training_iteration": 10}).storage_url
    '~/dasktune_results'
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    storage_patience: float = 300.0
    stop: Any = None
    checkpoint_config: CheckpointConfig = CheckpointConfig()
    failure_config: FailureConfig = FailureConfig()
    checkpoint_period: float | Literal["auto"] = "auto"
    callbacks: Sequence[Any] | None = None
    verbose: int = 1
    heartbeat_timeout: float = 30.0
    driver_ttl: float = 30.0
    stop_grace: float = 10.0
    scheduler_wait: float = 300.0
    code: Literal["auto", "installed"] = "auto"
    isolation: Literal["auto", "thread", "process"] = "auto"
    queue_trials: bool | None = None
    workers: WorkerFilter = None
    priority: float = 0
    declare_resources: bool = True
    dashboard: bool | int = False

    def __post_init__(self) -> None:
        self._check_place()
        self._check_parts()
        as_stopper(self.stop)  # for what it raises
        self._check_callbacks()
        check(self.verbose in (0, 1, 2, 3), "verbose", "0, 1, 2 or 3", self.verbose)
        if self.checkpoint_period != "auto":
            check_seconds("checkpoint_period", self.checkpoint_period)
        for name in ("heartbeat_timeout", "driver_ttl"):
            check_seconds(name, getattr(self, name))
        for name in ("stop_grace", "scheduler_wait", "storage_patience"):
            check_seconds(name, getattr(self, name), zero=True)
        check(self.code in ("auto", "installed"), "code", "'auto' or 'installed'", self.code)
        self._check_isolation()
        if self.queue_trials is not None:
            check_bool("queue_trials", self.queue_trials)
        check_workers(self.workers)
        priority = None if isinstance(self.priority, bool) else number(self.priority)
        finite = priority is not None and isfinite(priority)
        check(finite, "priority", "a finite number", self.priority)
        check_bool("declare_resources", self.declare_resources)
        fits = isinstance(self.dashboard, bool) or is_port(self.dashboard)
        check(fits, "dashboard", "True, False or a port from 1 to 65535", self.dashboard)

    def _check_place(self) -> None:
        check(
            self.name is None or is_safe_name(self.name),
            "name",
            f"a safe file name of at most {LONGEST_NAME} bytes (no separators, no '..')",
            self.name,
            "Folders go into storage_path.",
        )
        path: object = self.storage_path
        check(
            path is None or is_text(path) or isinstance(path, os.PathLike),
            "storage_path",
            "a path or a URL",
            path,
        )
        options: object = self.storage_options
        # The type says enough, and the values may be credentials.
        check(
            options is None or isinstance(options, Mapping),
            "storage_options",
            "a mapping",
            type(options),
        )

    def _check_callbacks(self) -> None:
        given: object = self.callbacks
        objects = isinstance(given, list | tuple) and not any(isinstance(x, type) for x in given)
        hint = "A class must be called."
        check(given is None or objects, "callbacks", "a list of objects", given, hint)

    def _check_isolation(self) -> None:
        kinds = ("auto", "thread", "process")
        check(self.isolation in kinds, "isolation", "'auto', 'thread' or 'process'", self.isolation)

    def _check_parts(self) -> None:
        # Ray Tune's users pass None for "the defaults".
        for name, default in (
            ("checkpoint_config", CheckpointConfig()),
            ("failure_config", FailureConfig()),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
            part, kind = getattr(self, name), type(default)
            check(isinstance(part, kind), name, f"a {kind.__name__}", part)

    def __repr__(self) -> str:
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        if self.storage_options is not None:
            shown["storage_options"] = dict.fromkeys(self.storage_options, "***")
        told = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        # The address, too, may have a password in it.
        return without_passwords(f"RunConfig({told})")

    @property
    def storage_url(self) -> str:
        """Where experiments are kept, whichever way it was given."""
        return DEFAULT_STORAGE_PATH if self.storage_path is None else os.fspath(self.storage_path)
