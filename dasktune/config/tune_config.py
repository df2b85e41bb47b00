"""`TuneConfig`: the metric, the searcher, the scheduler and the number of trials."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.config.found_past import is_unread
from dasktune.config.validation import check_bool, check_seconds, is_int, is_policy, is_text
from dasktune.errors import check, without_passwords
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals

#: The metric if only a mode is given: the plain number that a function returns or yields.
DEFAULT_METRIC: Final = "_metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """The metric to optimise, the searcher, the scheduler and the number of trials.

    Parameters
    ----------
    metric : str or list of str, optional
        The name of the metric that the trainable reports; nested names are joined by ``/``. It is
        ``"_metric"`` if only `mode` is given. A list optimises several objectives, if `search_alg`
        supports that; a scheduler then needs its own metric.
    mode : {"min", "max"} or list of them, optional
        Whether to minimise or maximise `metric`; a list with one for each if `metric` is a list.
        Required with `metric`.
    num_samples : int, default=1
        The number of samples of the search space; each is combined with all points of its grids.
        -1 has no limit: another rule must end the experiment.
    search_alg : Searcher, SearchAlgorithm or str, optional
        Chooses the configuration of each new trial; random and grid search by default.
    learn_from : str, path or list of them, optional
        Directories or URLs in which earlier experiments of the same trainable, metric and mode are
        looked for when a `Tuner` is created, up to two levels deep. If there are any,
        :class:`~dasktune.search.WarmStart` searches with their trials as its past, otherwise the
        search is random. Not with `search_alg`.
    scheduler : TrialScheduler or str, optional
        Stops, pauses and prioritises trials; first in, first out by default. An experiment copies
        the scheduler, so you can use the same one for others.
    max_concurrent_trials : int, optional
        The most trials that run at the same time, and the most unfinished trials of a search
        algorithm. By default only the cluster's resources limit them.
    time_budget_s : float or timedelta, optional
        Seconds after which the experiment ends.
    reuse_actors : bool, default=True
        Run a trial in the actor of an earlier one, with the same object if its class has a
        ``reset_config`` that returns True. False creates a new actor and object for every trial.
    trial_name_creator, trial_dirname_creator : callable, optional
        Functions of a :class:`~dasktune.callback.TrialView` that return the trial's display name
        and the name of its directory below ``trials/``; the trial's ID by default. Each is called
        once for each trial before it starts. A directory name that exists gets a number. An
        exception or an invalid name ends the experiment.
    strict_metrics : bool, default=True
        Whether a trial fails if a result lacks `metric` or the scheduler's metric. Otherwise such a
        result counts as the worst value.
    seed : int or SeedSequence, optional
        The seed of all random numbers. The same seed gives the same configurations and decisions.
        Without one, the seed is drawn from NumPy's global generator when the `Tuner` is created, so
        ``numpy.random.seed()`` has the same effect.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or `learn_from` is given with a `search_alg` or without a
        single metric.

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
    learn_from: Any = None
    scheduler: Any = None
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = True
    trial_name_creator: Callable[[Any], str] | None = None
    trial_dirname_creator: Callable[[Any], str] | None = None
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
            hint = f"A class must be called: {name}={policy.__name__}()." if isinstance(policy, type) else ""
            check(is_policy(policy), name, "an object or a name", policy, hint)
        self._check_past()
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
        for name in ("trial_name_creator", "trial_dirname_creator"):
            creator = getattr(self, name)
            check(creator is None or callable(creator), name, "a function of a trial", creator)
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
        hint = f"Say whether lower or higher values of {self.metric!r} are better."
        check(given, "mode", "'min' or 'max'", self.mode, hint)

    def _check_past(self) -> None:
        given = self.learn_from
        if not is_unread(given):
            return
        places = given if isinstance(given, list | tuple) else [given]
        is_place = [is_text(one) or isinstance(one, os.PathLike) for one in places]
        rule = "a directory, a URL, or a list of at least one of them"
        check(bool(places) and all(is_place), "learn_from", rule, given)
        hint = "For its arguments write search_alg=WarmStart(past=[paths], ...) and no learn_from."
        rule = "None with learn_from, which chooses WarmStart"
        check(self.search_alg is None, "search_alg", rule, self.search_alg, hint)
        hint = "WarmStart optimises one metric: name it by metric and mode."
        check(self.single_goal[0] is not None, "learn_from", "None without a single metric", given, hint)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        # A place of earlier experiments may contain a password.
        return without_passwords(f"TuneConfig({arguments})")

    @property
    def single_goal(self) -> tuple[str | None, Mode | None]:
        """The metric and its mode if there is one objective, otherwise None and None."""
        if isinstance(self.metric, list) or isinstance(self.mode, list):
            return None, None
        return self.metric, self.mode

    @property
    def time_budget(self) -> float | None:
        """The time budget in seconds."""
        budget = self.time_budget_s
        return budget.total_seconds() if isinstance(budget, timedelta) else budget
