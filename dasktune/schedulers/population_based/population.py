"""The base of population based training: ranking, exploit, and the order of trials.

A trial is ranked each time it has trained for another perturbation interval. If it is one of the
worst, it becomes a clone of one of the best (exploit) with a changed configuration (explore).

A trial that became a clone is not part of the ranking until its next own ranking, because its old
score belongs to its old configuration.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from math import ceil, floor, isfinite
from typing import Any

from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError, check
from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Exploit,
    ExploitOther,
    Pause,
    Unpause,
)
from dasktune.schedulers.metric_scheduler import MetricScheduler, check_flag, finite_number
from dasktune.schedulers.population_based.explore import apply_explore_function
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.space.checks import accepts_arguments
from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.milestone import Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial


@dataclass(slots=True)
class Member:
    """The state of an unfinished trial."""

    #: `time_attr` of its next ranking; not used with ``synch=True``.
    due: float
    #: How often it was ranked. The trial with the fewest rankings starts next. If training time
    #: decided, a trial that is replaced again and again would always start before its donor.
    turns: int = 0
    #: `time_attr` of its last ranking, or of the checkpoint that it was cloned from.
    time: float = 0.0
    #: Its ``training_iteration`` at its last ranking.
    iteration: int = 0
    #: Its score at its last ranking. Higher is better, None is the worst.
    score: float | None = None
    #: Whether `score` belongs to its current configuration.
    is_ranked: bool = False
    #: Whether it is paused until the ranking of all trials, or until a question is answered.
    waits_for_ranking: bool = False
    #: Whether it is on no worker, according to the calls that the scheduler got.
    is_off_worker: bool = True


class Population(MetricScheduler):
    """Base class of PBT and PB2: ranks trials at intervals, and replaces the worst by clones.

    A subclass implements `_fill_in` and `_explore`, which make the configurations of new trials and
    of clones. The parameters are those of :class:`~dasktune.schedulers.PopulationBasedTraining`.
    """

    def __init__(
        self,
        *,
        time_attr: str,
        metric: str | None,
        mode: Mode | None,
        perturbation_interval: float,
        burn_in_period: float,
        quantile_fraction: float,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None,
        log_config: bool,
        require_attrs: bool,
        synch: bool,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self._interval = finite_number("perturbation_interval", perturbation_interval)
        self._fraction = finite_number("quantile_fraction", quantile_fraction)
        burn_in = finite_number("burn_in_period", burn_in_period)
        check(self._interval > 0, "perturbation_interval", "more than 0", perturbation_interval)
        check(0 <= self._fraction <= 0.5, "quantile_fraction", "in [0, 0.5]", quantile_fraction)
        check(burn_in >= 0, "burn_in_period", "at least 0", burn_in_period)
        check_flag("require_attrs", require_attrs)
        check_flag("synch", synch)
        check_flag("log_config", log_config)
        usable = custom_explore_fn is None or accepts_arguments(custom_explore_fn, {})
        rule = "None, or callable with a configuration"
        check(usable, "custom_explore_fn", rule, custom_explore_fn)
        self._custom_explore = custom_explore_fn
        self._log_config = log_config
        self._require_attrs = require_attrs
        self._synch = synch
        #: `time_attr` of the first ranking; with ``synch=True`` also of the next ranking of all
        #: trials.
        self._first = self._barrier = max(self._interval, burn_in)
        self._members: dict[str, Member] = {}
        #: All trials by id, read-only.
        self._trials: Mapping[str, Trial] = {}
        #: Number of places that trials have freed and no trial has taken since.
        self._left = 0
        self._num_exploits = 0
        self._rng = default_rng(0)

    @abstractmethod
    def _fill_in(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new trial's configuration with missing hyperparameters drawn."""

    @abstractmethod
    def _explore(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a clone, derived from that of its donor."""

    def _observe(self, trial: Trial, member: Member) -> None:
        """Handle a new ranking of a trial, whose score is in `member`; does nothing by default."""

    @property
    def writes_policies(self) -> bool:
        """Whether the constructor got ``log_config=True``."""
        return self._log_config

    @property
    def clones_trials(self) -> bool:
        """True: a trial that is behind continues as a clone of a better one."""
        return True

    @property
    def waits_for_others(self) -> bool:
        """Whether ``synch=True``: rankings then wait for trials that are not suggested yet."""
        return self._synch

    def seed(self, seed: SeedSequence) -> None:
        """Seed the random generator; without this call its seed is 0."""
        self._rng = default_rng(seed)

    def observe(self, view: ClusterView) -> None:
        """Store the trials: a clone's configuration is derived from that of its donor."""
        self._trials = view.trials

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Add the trial to the population, and draw the hyperparameters that it lacks."""
        self._member(trial)
        config = self._fill_in(trial.config)
        if config == trial.config:
            return None
        key, reason = trial.trial_id, "missing hyperparameters were drawn"
        return (ExploitOther(trial_id=key, donor=key, config=config, reason=reason),)

    def on_trial_start(self, trial: Trial) -> None:
        """Record that the trial has a place."""
        self._member(trial).is_off_worker = False
        self._left = max(0, self._left - 1)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Rank the trial if its interval is over, and replace it if it is one of the worst."""
        time = self._time(trial, result)
        missing = [name for name in (self.time_attr, self._goal()[0]) if _is_missing(result, name)]
        if missing and self._require_attrs:
            raise ConfigError(
                f"the results of trial {trial.trial_id} must have {missing[0]!r}, which "
                f"{type(self).__name__} needs, got {sorted(result)}. With require_attrs=False "
                "results without it are ignored."
            )
        member = self._member(trial)
        due = self._barrier if self._synch else member.due
        if time is None or not isfinite(time) or time < due:
            return Continue()
        value = self._value(trial, result)
        if missing:
            return Continue()
        member.turns += 1
        member.time, member.iteration = time, int(result["training_iteration"])
        member.score, member.is_ranked = self._score(value), True
        self._observe(trial, member)
        if self._synch:
            member.waits_for_ranking = member.is_off_worker = True
            return Pause(f"waits for the other trials at {self.time_attr} {self._barrier:g}")
        member.due = time + self._interval
        return self._decide_ranked(trial, member)

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Reset the trial's state to that of its donor's checkpoint."""
        if donor is trial:
            return
        member = self._member(trial)
        origin = trial.origin.metrics if trial.origin is not None else {}
        time = number(lookup(origin, self.time_attr))
        if time is None and donor.trial_id in self._members:
            time = self._members[donor.trial_id].time
        member.time = time or 0.0
        member.due = member.time + self._interval
        member.is_ranked = False
        self._num_exploits += 1
        if not (self._synch or member.is_off_worker):
            self._free_place(member)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Remove the trial from the population."""
        return self._forget(trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from the population; with ``synch`` no trial waits for it any more."""
        return self._forget(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Remove the trial from the population; with ``synch`` no trial waits for it any more."""
        return self._forget(trial)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose a trial that lost its worker, else the least often ranked one; costs O(n)."""
        known = self._members
        ready = [
            trial
            for trial in (*waiting.pending.values(), *waiting.paused.values())
            if trial.trial_id not in known or not known[trial.trial_id].waits_for_ranking
        ]
        return min(ready, key=self._precedence, default=None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Rank all trials, which have all trained for the interval now, and resume them."""
        names = (*waiting.pending, *waiting.paused)
        there = {key: self._members[key] for key in names if key in self._members}
        lower, upper = self._quantiles(there)
        if lower and upper:
            return self._replace_all(lower, upper, there)
        return self._resume_all(there)

    def _replace_all(
        self, lower: list[str], upper: list[str], there: Mapping[str, Member]
    ) -> tuple[Command, ...]:
        """Return commands that replace the worst of the waiting trials and resume all of them."""
        orders = [self._exploit_other(key, self._exploit(self._draw_donor(upper))) for key in lower]
        return (*orders, *self._resume_all(there))

    def _resume_all(self, there: Mapping[str, Member]) -> tuple[Command, ...]:
        """Return commands that resume the waiting trials until the next ranking."""
        latest = max((member.time for member in there.values()), default=0.0)
        beyond = max(1, floor((latest - self._barrier) / self._interval) + 1)
        self._barrier += beyond * self._interval
        for member in there.values():
            member.waits_for_ranking = False
        return tuple(Unpause(trial_id=key) for key in there)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return the next ranking of the trial."""
        member = self._members.get(trial.trial_id)
        due = self._first if member is None else member.due
        return (Milestone(self.time_attr, self._barrier if self._synch else due),)

    def debug_string(self) -> str:
        """Return the number of exploits, of ranked trials and of trials."""
        name, total = type(self).__name__, len(self._members)
        return f"{name}: {self._num_exploits} exploits, {self._num_ranked} of {total} ranked"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each trial and of the random generator."""
        return {
            "members": {key: list(astuple(member)) for key, member in self._members.items()},
            "barrier": self._barrier,
            "left": self._left,
            "num_exploits": self._num_exploits,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._members = {key: Member(*member) for key, member in state["members"].items()}
        self._barrier = state["barrier"]
        self._left = state["left"]
        self._num_exploits = state["num_exploits"]
        self._rng.bit_generator.state = state["rng"]

    def _member(self, trial: Trial) -> Member:
        return self._members.setdefault(trial.trial_id, Member(self._first))

    def _forget(self, trial: Trial) -> tuple[Command, ...]:
        self._members.pop(trial.trial_id, None)
        return ()

    def _free_place(self, member: Member) -> None:
        member.is_off_worker = True
        self._left += 1

    def _precedence(self, trial: Trial) -> tuple[bool, int]:
        lost = trial.status is TrialStatus.PENDING and trial.incarnation > 0
        member = self._members.get(trial.trial_id)
        return not lost, 0 if member is None else member.turns

    def _decide_ranked(self, trial: Trial, member: Member) -> Decision:
        """Return the decision on a trial that was just ranked, with ``synch=False``."""
        lower, upper = self._quantiles(self._members)
        if trial.trial_id in lower and upper:
            return self._replace(trial, member, upper)
        if sum(one.is_off_worker for one in self._members.values()) > self._left:
            self._free_place(member)
            reason = f"makes room for others at {self.time_attr} {member.time:g}"
            return Pause(reason, hold=True)
        return _CONTINUE_HELD

    def _replace(self, trial: Trial, member: Member, upper: list[str]) -> Decision:
        """Return the decision that makes one of the worst a clone of one of the best."""
        return self._exploit(self._draw_donor(upper))

    def _draw_donor(self, upper: list[str]) -> str:
        return upper[int(self._rng.integers(len(upper)))]

    def _exploit(self, donor: str, config: dict[str, Any] | None = None) -> Exploit:
        """Return the exploit of a donor, with a randomly explored configuration by default."""
        best = self._members[donor]
        assert best.score is not None, "a donor has a score"
        if config is None:
            config = self._explore(self._trials[donor].config)
        score = best.score if self.mode == "max" else -best.score
        return Exploit(
            donor,
            apply_explore_function(self._custom_explore, config) if self._custom_explore else config,
            f"is among the worst of {self._num_ranked} by {self.metric}; becomes a clone of "
            f"{donor}, which has {score:.6g}",
            iteration=best.iteration,
            otherwise=_CONTINUE_HELD,
        )

    @staticmethod
    def _exploit_other(trial_id: str, wish: Exploit) -> ExploitOther:
        return ExploitOther(
            trial_id=trial_id,
            donor=wish.donor,
            config=wish.config,
            reason=wish.reason,
            iteration=wish.iteration,
        )

    @property
    def _num_ranked(self) -> int:
        return sum(member.is_ranked for member in self._members.values())

    def _quantiles(self, members: Mapping[str, Member]) -> tuple[list[str], list[str]]:
        """Return the worst trials, which are replaced, and the best, both sorted worst first.

        Trials without a score are among the worst, and never among the best.
        """
        ranked = sorted(
            (key for key, member in members.items() if member.is_ranked),
            key=lambda key: (members[key].score is not None, members[key].score or 0.0),
        )
        # Rounding may put the product slightly above a whole number.
        count = min(ceil(len(ranked) * self._fraction - 1e-9), len(ranked) // 2)
        undefined = sum(members[key].score is None for key in ranked)
        worst = max(count, undefined)
        return ranked[:worst], ranked[max(worst, len(ranked) - count) :]


#: Continue, with a checkpoint that clones can resume from.
_CONTINUE_HELD = Continue(save=True, kind=CheckpointKind.MEMORY, hold=True)


def _is_missing(result: Mapping[str, Any], name: str) -> bool:
    return lookup(result, name) is None
