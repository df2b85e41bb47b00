"""Population based bandits: population based training that learns where to explore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.schedulers.bandit import MOST_CHANGES, Change, Situation, most_promising
from dasktune.schedulers.bounds import Bounds
from dasktune.schedulers.decision import Command, Decision, Pause
from dasktune.schedulers.population import Member, Population
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.trial import Trial

__all__ = ["PB2"]


@dataclass(frozen=True, slots=True)
class _Question:
    """With what some trials should go on as clones."""

    clones: list[str]
    #: Of whom each of them is to be one.
    donors: list[str]
    #: What these have come to; higher is better.
    rewards: list[float]
    #: How long they have trained, in perturbation intervals.
    time: float
    #: Of the random numbers that it takes to think about it.
    seed: int


class PB2(Population):
    """Population based training that learns from what it has tried, so that few trials are enough.

    Trials are replaced as by :class:`PopulationBasedTraining`, but a clone's hyperparameters are
    not changed by chance: a Gaussian process of what trials have gained with theirs, lately, says
    where the gain may be the largest. It needs scikit-learn.

    Parameters
    ----------
    time_attr : str, default="time_total_s"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to rank by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    perturbation_interval : float, default=60
        How long a trial trains from one ranking to the next, in units of `time_attr`. More than 0.
    hyperparam_bounds : dict
        For each hyperparameter that may change ``[lowest, highest]``, both included, a domain made
        by ``uniform``, ``loguniform``, ``randint`` or ``lograndint``, or a dict of these for a
        nested one. On a log scale the process sees logarithms. What a new trial's configuration
        lacks of these is drawn, an int where both bounds are.
    quantile_fraction : float, default=0.25
        How large a part of the trials is replaced, and how large a part is cloned. In [0, 0.5].
    log_config : bool, default=True
        Whether ``pbt_global.txt`` and ``pbt_policy_<trial>.txt`` are written.
    require_attrs : bool, default=True
        Whether a result without `time_attr` or `metric` is an error, which ends the run; else it is
        passed over.
    synch : bool, default=False
        Whether trials wait for each other at each ranking, so that all have trained as long.
    custom_explore_fn : callable, optional
        ``custom_explore_fn(config)`` is given the changed configuration, and returns the one that
        the clone gets. It must depend on nothing else.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or scikit-learn is not installed.

    See Also
    --------
    PopulationBasedTraining : Needs no model, and more trials.

    Notes
    -----
    Algorithm 1 of [1]_. What is said of rankings and clones at :class:`PopulationBasedTraining`
    holds here, too, and:

    - From one ranking to the next a trial, or a clone from its checkpoint on, gains so much per
      unit of time. The last 1,000 of these are known to the process. It sees when it was, what the
      trial had come to before, and the hyperparameters. Where a score is undefined nothing is seen.
    - As long as nothing was seen, clones get hyperparameters by chance.
    - Finding the best takes up to some seconds, in another thread of the driver. The trial is
      paused meanwhile, and others take its place; results are judged as ever. If its donor has
      ended by then, or has no checkpoint, the trial goes on as it was.
    - An int stays an int: it is rounded.

    With ``synch=True`` everybody waits while it is thought about all of the worst at once.

    References
    ----------
    .. [1] J. Parker-Holder, V. Nguyen and S. Roberts, "Provably Efficient Online Hyperparameter
       Optimization with Population-Based Bandits", NeurIPS, 2020. https://arxiv.org/abs/2002.02518

    Examples
    --------
    >>> from dasktune.space import loguniform
    >>> pb2 = PB2(
    ...     time_attr="training_iteration",
    ...     metric="loss",
    ...     mode="min",
    ...     perturbation_interval=4,
    ...     hyperparam_bounds={"lr": loguniform(1e-4, 1e-1), "momentum": [0.8, 0.99]},
    ... )
    >>> pb2.debug_string()
    'PB2: 0 exploits, 0 of 0 ranked'
    """

    def __init__(
        self,
        *,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: Mode | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            burn_in_period=0.0,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )
        self._bounds = Bounds(hyperparam_bounds)
        _require_sklearn()
        #: What was observed, the newest last.
        self._changes: list[Change] = []
        #: When each trial was ranked last with its present hyperparameters, or cloned, and what it
        #: had come to.
        self._baselines: dict[str, tuple[float, float]] = {}
        #: Those that are open, by number, the oldest first.
        self._questions: dict[int, _Question] = {}
        self._num_questions = 0

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """The oldest question whose trials have left their workers, if there is one.

        One at a time: what is found is not to be found again for another trial.
        """
        for key, question in self._questions.items():
            if not any(self._trials[one].status.is_active for one in question.clones):
                return {key: partial(_think, self._situation(question))}
        return {}

    def on_answer(
        self, number: int, answer: Sequence[Sequence[float]] | None
    ) -> tuple[Command, ...]:
        """Let trials go on as clones with what was found; without an answer, by chance."""
        question = self._questions.pop(number, None)
        if question is None:
            return ()
        points = answer or [self._bounds.drawn(self._rng) for _ in question.clones]
        orders: list[Command] = []
        for key, donor, point in zip(question.clones, question.donors, points, strict=True):
            member = self._members.get(key)
            if member is None or not member.stands:
                continue  # It has ended.
            member.is_ranked, member.stands = True, self._synch
            best = self._members.get(donor)
            if best is not None and best.is_ranked and best.score is not None:
                config = self._bounds.at(self._trials[donor].config, point)
                orders.append(self._order(key, self._wish(donor, config)))
        if self._synch:
            there = {key: member for key, member in self._members.items() if member.stands}
            orders += self._let_go(there)
        return tuple(orders)

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Begin with it anew from where its donor was."""
        super().on_trial_exploit(trial, donor)
        self._baselines.pop(trial.trial_id, None)
        if trial.origin is not None:
            score = self._score(number(lookup(trial.origin.metrics, self._goal()[0])))
            if score is not None:
                self._baselines[trial.trial_id] = self._member(trial).time, score

    def state_dict(self) -> dict[str, Any]:
        """Return where each trial is, what was observed, and what is being thought about."""
        return {
            **super().state_dict(),
            "bounds": self._bounds.names,
            "changes": [[one.time, one.before, one.rate, *one.point] for one in self._changes],
            "baselines": {key: list(baseline) for key, baseline in self._baselines.items()},
            "questions": {str(key): list(astuple(one)) for key, one in self._questions.items()},
            "num_questions": self._num_questions,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If `hyperparam_bounds` name other hyperparameters.
        """
        names = self._bounds.names
        hint = "Name the same hyperparameters in the same order; their bounds may be others."
        same = names == state["bounds"]
        check(same, "hyperparam_bounds", f"of {', '.join(state['bounds'])} as before", names, hint)
        super().load_state_dict(state)
        self._changes = [
            Change(time, before, rate, tuple(point))
            for time, before, rate, *point in state["changes"]
        ]
        self._baselines = {key: (time, score) for key, (time, score) in state["baselines"].items()}
        self._questions = {int(key): _Question(*told) for key, told in state["questions"].items()}
        self._num_questions = state["num_questions"]

    def _filled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._bounds.filled(config, self._rng)

    def _explored(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._bounds.at(config, self._bounds.drawn(self._rng))

    def _observe(self, trial: Trial, member: Member) -> None:
        before = self._baselines.pop(trial.trial_id, None)
        if member.score is None:
            return
        self._baselines[trial.trial_id] = member.time, member.score
        point = self._bounds.point(trial.config)
        if before is None or point is None:
            return
        since, reward = before
        rate = (member.score - reward) / (member.time - since) if member.time > since else inf
        if isfinite(rate):
            self._changes.append(Change(member.time / self._interval, reward, rate, point))
            del self._changes[:-MOST_CHANGES]

    def _forget(self, trial: Trial) -> tuple[Command, ...]:
        self._baselines.pop(trial.trial_id, None)
        return super()._forget(trial)

    def _replaced(self, trial: Trial, member: Member, upper: list[str]) -> Decision:
        if not self._changes:
            return super()._replaced(trial, member, upper)
        reason = f"is among the worst of {self._num_ranked} by {self.metric}"
        member.stands = True
        self._leave(member)
        self._ask([trial.trial_id], upper)
        return Pause(f"{reason}; goes on when it is known with what", hold=True)

    def _all_replaced(
        self, lower: list[str], upper: list[str], there: Mapping[str, Member]
    ) -> tuple[Command, ...]:
        if not self._changes:
            return super()._all_replaced(lower, upper, there)
        self._ask(lower, upper)
        return ()

    def _ask(self, clones: list[str], upper: list[str]) -> None:
        donors = [self._drawn_donor(upper) for _ in clones]
        best = [self._members[key] for key in donors]
        self._num_questions += 1
        self._questions[self._num_questions] = _Question(
            clones,
            donors,
            rewards=[one.score for one in best if one.score is not None],
            time=max(one.time for one in best) / self._interval,
            seed=int(self._rng.integers(2**32)),
        )
        for key in clones:
            # What it has come to says nothing of what it will be.
            self._members[key].is_ranked = False

    def _situation(self, question: _Question) -> Situation:
        points = (
            self._bounds.point(self._trials[key].config)
            for key, member in self._members.items()
            if member.turns and not (member.is_ranked or member.stands)
        )
        return Situation(
            tuple(self._changes),
            [point for point in points if point is not None],
            time=question.time,
            rewards=question.rewards,
            seed=question.seed,
        )


def _think(situation: Situation) -> list[list[float]]:
    return [list(point) for point in most_promising(situation)]


def _require_sklearn() -> None:
    # Not imported: that takes a second, and is done where it is thought.
    if find_spec("sklearn") is None:
        raise ConfigError("PB2 needs scikit-learn. Run: pip install dasktune[sklearn]")
