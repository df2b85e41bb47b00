"""Population based training, but for how a configuration is explored.

The trials are ranked each time that they have trained for another interval. One of the worst is
given up for a clone of one of the best, whose configuration is changed a little.

A trial that was cloned counts in no ranking until it is judged again: what it had come to before
says nothing of what it is now.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from math import ceil, floor, isfinite
from typing import Any

from numpy.random import SeedSequence, default_rng

from dasktune.errors import ConfigError, check
from dasktune.schedulers.by_metric import MetricScheduler, check_flag, real
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
from dasktune.schedulers.explore import explored_by
from dasktune.schedulers.trial_scheduler import Waiting
from dasktune.space.checks import takes
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.milestone import Milestone
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["Member", "Population"]


@dataclass(slots=True)
class Member:
    """A trial that has not ended."""

    #: Where it is judged next, in units of `time_attr`; not used where trials wait for each other.
    due: float
    #: How often it was judged. Whoever has had the fewest turns is next: if it was who has trained
    #: least, a trial that is set back again and again would never let its donor train on.
    turns: int = 0
    #: How long it had trained when it was judged last, or the checkpoint that it was cloned from.
    time: float = 0.0
    #: Its ``training_iteration`` then.
    iteration: int = 0
    #: What it had come to. Higher is better, None is the worst.
    score: float | None = None
    #: Whether `score` says what the trial is now.
    is_ranked: bool = False
    #: Whether it waits for the others to have trained as long.
    stands: bool = False
    #: Whether it is on no worker, for all that is known here.
    waits: bool = True


class Population(MetricScheduler):
    """Ranks trials from time to time, and has the worst replaced by clones of the best.

    A subclass says in `_filled` and `_explored` with what configurations trials go on. The
    parameters are those of :class:`~dasktune.schedulers.PopulationBasedTraining`.
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
        self._interval = real("perturbation_interval", perturbation_interval)
        self._fraction = real("quantile_fraction", quantile_fraction)
        burn_in = real("burn_in_period", burn_in_period)
        check(self._interval > 0, "perturbation_interval", "more than 0", perturbation_interval)
        check(0 <= self._fraction <= 0.5, "quantile_fraction", "in [0, 0.5]", quantile_fraction)
        check(burn_in >= 0, "burn_in_period", "at least 0", burn_in_period)
        check_flag("require_attrs", require_attrs)
        check_flag("synch", synch)
        check_flag("log_config", log_config)
        usable = custom_explore_fn is None or takes(custom_explore_fn, {})
        rule = "None, or callable with a configuration"
        check(usable, "custom_explore_fn", rule, custom_explore_fn)
        self._custom_explore = custom_explore_fn
        self._log_config = log_config
        self._require_attrs = require_attrs
        self._synch = synch
        #: Where trials are judged first; where they wait for each other, where they do so next.
        self._first = self._barrier = max(self._interval, burn_in)
        self._members: dict[str, Member] = {}
        #: All there are; to be read only.
        self._trials: Mapping[str, Trial] = {}
        #: How many places were left that nobody has taken since.
        self._left = 0
        self._num_exploits = 0
        self._rng = default_rng(0)

    @abstractmethod
    def _filled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new trial's configuration with what it lacks drawn, and the rest as it is."""

    @abstractmethod
    def _explored(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that a clone goes on with, made of its donor's."""

    def _observe(self, trial: Trial, member: Member) -> None:
        """Learn from a ranking, which `member` tells of."""

    @property
    def writes_policies(self) -> bool:
        """Whether `log_config` was asked for."""
        return self._log_config

    @property
    def waits_for_others(self) -> bool:
        """Whether trials wait for each other: all that are to come must be let come then."""
        return self._synch

    def seed(self, seed: SeedSequence) -> None:
        """Take the source of all randomness; until then it is that of seed 0."""
        self._rng = default_rng(seed)

    def observe(self, view: ClusterView) -> None:
        """Take the view of all trials: a clone's configuration is made of its donor's."""
        self._trials = view.trials

    def on_trial_add(self, trial: Trial) -> tuple[Command, ...] | None:
        """Take the trial into the population, with all hyperparameters that it needs."""
        self._member(trial)
        config = self._filled(trial.config)
        if config == trial.config:
            return None
        key, reason = trial.trial_id, "its configuration lacks what is to be explored"
        return (ExploitOther(trial_id=key, donor=key, config=config, reason=reason),)

    def on_trial_start(self, trial: Trial) -> None:
        """Note that it has its place."""
        self._member(trial).waits = False
        self._left = max(0, self._left - 1)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Decision:
        """Rank the trial if it has trained for another interval; perhaps replace it."""
        time = self._time(trial, result)
        missing = [name for name in (self.time_attr, self._goal()[0]) if _lacks(result, name)]
        if missing and self._require_attrs:
            raise ConfigError(
                f"the results of trial {trial.trial_id} must have {missing[0]!r}, by which "
                f"{type(self).__name__} judges, got {sorted(result)}. With require_attrs=False a "
                "result without it is passed over."
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
            member.stands = member.waits = True
            return Pause(f"waits for the others at {self.time_attr} {self._barrier:g}")
        member.due = time + self._interval
        return self._passing(trial, member)

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Begin with it anew from where its donor was."""
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
        if not (self._synch or member.waits):
            self._leave(member)

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        """Forget the trial."""
        return self._forget(trial)

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        """Forget the trial: nobody waits for it any more."""
        return self._forget(trial)

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        """Forget the trial: nobody waits for it any more."""
        return self._forget(trial)

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        """Choose who was lost, else who had the fewest turns. Costs O(n) in those that wait."""
        known = self._members
        ready = [
            trial
            for trial in (*waiting.pending.values(), *waiting.paused.values())
            if trial.trial_id not in known or not known[trial.trial_id].stands
        ]
        return min(ready, key=self._precedence, default=None)

    def on_standstill(self, waiting: Waiting) -> tuple[Command, ...]:
        """Replace the worst, as all have trained as long, and let everybody go on."""
        names = (*waiting.pending, *waiting.paused)
        there = {key: self._members[key] for key in names if key in self._members}
        lower, upper = self._quantiles(there)
        if lower and upper:
            return self._all_replaced(lower, upper, there)
        return self._let_go(there)

    def _all_replaced(
        self, lower: list[str], upper: list[str], there: Mapping[str, Member]
    ) -> tuple[Command, ...]:
        """Return how the worst of those that have waited for each other become clones."""
        orders = [self._order(key, self._wish(self._drawn_donor(upper))) for key in lower]
        return (*orders, *self._let_go(there))

    def _let_go(self, there: Mapping[str, Member]) -> tuple[Command, ...]:
        """Let those that have waited for each other train to the next ranking."""
        latest = max((member.time for member in there.values()), default=0.0)
        beyond = max(1, floor((latest - self._barrier) / self._interval) + 1)
        self._barrier += beyond * self._interval
        for member in there.values():
            member.stands = False
        return tuple(Unpause(trial_id=key) for key in there)

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        """Return where the trial is ranked next."""
        member = self._members.get(trial.trial_id)
        due = self._first if member is None else member.due
        return (Milestone(self.time_attr, self._barrier if self._synch else due),)

    def debug_string(self) -> str:
        """Return how many trials there are, and how many were replaced."""
        name, total = type(self).__name__, len(self._members)
        return f"{name}: {self._num_exploits} exploits, {self._num_ranked} of {total} ranked"

    def state_dict(self) -> dict[str, Any]:
        """Return where each trial is, and the state of the random generator."""
        return {
            "members": {key: list(astuple(member)) for key, member in self._members.items()},
            "barrier": self._barrier,
            "left": self._left,
            "num_exploits": self._num_exploits,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._members = {key: Member(*told) for key, told in state["members"].items()}
        self._barrier = state["barrier"]
        self._left = state["left"]
        self._num_exploits = state["num_exploits"]
        self._rng.bit_generator.state = state["rng"]

    def _member(self, trial: Trial) -> Member:
        return self._members.setdefault(trial.trial_id, Member(self._first))

    def _forget(self, trial: Trial) -> tuple[Command, ...]:
        self._members.pop(trial.trial_id, None)
        return ()

    def _leave(self, member: Member) -> None:
        member.waits = True
        self._left += 1

    def _precedence(self, trial: Trial) -> tuple[bool, int]:
        lost = trial.status is TrialStatus.PENDING and trial.incarnation > 0
        member = self._members.get(trial.trial_id)
        return not lost, 0 if member is None else member.turns

    def _passing(self, trial: Trial, member: Member) -> Decision:
        """Return what becomes of a trial that waits for nobody."""
        lower, upper = self._quantiles(self._members)
        if trial.trial_id in lower and upper:
            return self._replaced(trial, member, upper)
        if sum(one.waits for one in self._members.values()) > self._left:
            self._leave(member)
            reason = f"makes room for others at {self.time_attr} {member.time:g}"
            return Pause(reason, hold=True)
        return _STAYS

    def _replaced(self, trial: Trial, member: Member, upper: list[str]) -> Decision:
        """Return how one of the worst becomes a clone of one of the best."""
        return self._wish(self._drawn_donor(upper))

    def _drawn_donor(self, upper: list[str]) -> str:
        return upper[int(self._rng.integers(len(upper)))]

    def _wish(self, donor: str, config: dict[str, Any] | None = None) -> Exploit:
        """Return what lets one of the worst be a clone, explored by chance if nothing is given."""
        best = self._members[donor]
        assert best.score is not None, "nobody is to be like that"
        if config is None:
            config = self._explored(self._trials[donor].config)
        score = best.score if self.mode == "max" else -best.score
        return Exploit(
            donor,
            explored_by(self._custom_explore, config) if self._custom_explore else config,
            f"is among the worst of {self._num_ranked} by {self.metric}; goes on as a clone of "
            f"{donor}, which has {score:.6g}",
            iteration=best.iteration,
            otherwise=_STAYS,
        )

    @staticmethod
    def _order(trial_id: str, wish: Exploit) -> ExploitOther:
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
        """Return the worst, who are to be replaced, and the best, each the worst first.

        Whoever has no score is among the worst, and never among the best.
        """
        ranked = sorted(
            (key for key, member in members.items() if member.is_ranked),
            key=lambda key: (members[key].score is not None, members[key].score or 0.0),
        )
        # The fraction of a number may come out a little above a whole one.
        count = min(ceil(len(ranked) * self._fraction - 1e-9), len(ranked) // 2)
        undefined = sum(members[key].score is None for key in ranked)
        worst = max(count, undefined)
        return ranked[:worst], ranked[max(worst, len(ranked) - count) :]


#: Goes on; others may be told to go on from there.
_STAYS = Continue(save=True, kind=CheckpointKind.MEMORY, hold=True)


def _lacks(result: Mapping[str, Any], name: str) -> bool:
    return lookup(result, name) is None
