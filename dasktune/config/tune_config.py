"""What is searched for, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.rules import check_bool, check_seconds, is_int, is_policy
from dasktune.trial.metrics import Metric, Mode, Modes, check_goals

__all__ = ["DEFAULT_METRIC", "TuneConfig"]

#: What is optimised when only a mode is given: the number that a function returns or yields bare.
DEFAULT_METRIC: Final = "_metric"


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
    trial_name_creator, trial_dirname_creator : callable, optional
        Given a :class:`~dasktune.callback.TrialView`, return what a trial is called for people, and
        what its directory below ``trials/`` is called; both are called by its id by default, which
        stays its key. Asked once for each trial, before it starts; a name of a directory that is
        taken gets a number. What is wrong with them ends the experiment.
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
