"""PB2, population based bandits (Parker-Holder et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.schedulers.decision import Command, Decision, Pause
from dasktune.schedulers.population_based.bounds import Bounds
from dasktune.schedulers.population_based.gp_bandit import (
    MOST_CHANGES,
    BanditState,
    Change,
    suggest_points,
)
from dasktune.schedulers.population_based.population import Member, Population
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.trial import Trial


@dataclass(frozen=True, slots=True)
class _Question:
    """A request for the configurations of trials that become clones."""

    clones: list[str]
    #: The donor of each clone.
    donors: list[str]
    #: The scores of the donors; higher is better.
    rewards: list[float]
    #: The longest time that a donor has trained, in perturbation intervals.
    time: float
    #: Seed of the optimisation's random numbers.
    seed: int


class PB2(Population):
    """Population based bandits (PB2): PBT that explores with a Gaussian process.

    Trials are replaced as in :class:`PopulationBasedTraining`. The hyperparameters of a clone are
    not perturbed at random: a Gaussian process models the recent improvement of trials as a
    function of their hyperparameters, and the point with the highest upper confidence bound is
    used. Small populations are enough. PB2 needs scikit-learn.

    Parameters
    ----------
    time_attr : str, default="time_total_s"
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str, optional
        The metric to rank trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    perturbation_interval : float, default=60
        Time between two rankings of a trial, in units of `time_attr`. More than 0.
    hyperparam_bounds : dict
        The hyperparameters that may change. Each has bounds ``[lowest, highest]``, both included, a
        domain made by ``uniform``, ``loguniform``, ``randint`` or ``lograndint``, or a dict of
        these for nested configurations. With a log domain the Gaussian process gets logarithms. If
        a new trial's configuration lacks a hyperparameter, it is drawn, as an int if both bounds
        are ints.
    quantile_fraction : float, default=0.25
        Fraction of the trials that are replaced, and equally of the trials that are their donors.
        In [0, 0.5].
    log_config : bool, default=True
        Whether ``pbt_global.txt`` and ``pbt_policy_<trial>.txt`` are written.
    require_attrs : bool, default=True
        Whether a result without `time_attr` or `metric` is an error, which ends the run. If False,
        it is ignored.
    synch : bool, default=False
        Whether all trials are ranked together: each pauses at the end of an interval until all
        unfinished trials have reached it.
    custom_explore_fn : callable, optional
        ``custom_explore_fn(config)`` gets the changed configuration and returns the clone's
        configuration. The function must depend on its argument only.

    Raises
    ------
    ConfigError
        If an argument is invalid, or scikit-learn is not installed.

    See Also
    --------
    PopulationBasedTraining : Explores at random; needs larger populations.

    Notes
    -----
    This is algorithm 1 of [1]_. The notes on rankings and clones of
    :class:`PopulationBasedTraining` apply here too, and:

    - An observation is the improvement of the score per unit of time between two rankings of a
      trial, or between a clone's checkpoint and its first ranking. The inputs of the process are
      the time, the earlier score and the hyperparameters. It uses the last 1,000 observations.
      Rankings with an undefined score give none.
    - Before the first observation, clones get random hyperparameters.
    - The optimisation takes up to a few seconds, in a background thread of the driver. The trial is
      paused meanwhile, and others use its place. If its donor has ended by then, or has no
      checkpoint, the trial continues with its own configuration.
    - Integers stay integers, by rounding.

    With ``synch=True`` all trials wait while the configurations of all clones are optimised
    together.

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
        #: The observations, newest last.
        self._changes: list[Change] = []
        #: ``{trial_id: (time, score)}`` at the last ranking with the current hyperparameters, or of
        #: the checkpoint that the trial was cloned from.
        self._baselines: dict[str, tuple[float, float]] = {}
        #: The open questions by number, oldest first.
        self._questions: dict[int, _Question] = {}
        self._num_questions = 0

    @property
    def questions(self) -> Mapping[int, Callable[[], Any]]:
        """The oldest question whose trials have left their workers, if there is one.

        Only one at a time: the next question treats the points of this one as pending. The
        background thread computes with copies that no later call changes.
        """
        for key, question in self._questions.items():
            if not any(self._trials[one].status.is_active for one in question.clones):
                return {key: partial(_answer_question, self._bandit_state(question))}
        return {}

    def on_answer(self, number: int, answer: Sequence[Sequence[float]] | None) -> tuple[Command, ...]:
        """Make each trial a clone with the suggested hyperparameters, or with random ones."""
        question = self._questions.pop(number, None)
        if question is None:
            return ()
        points = answer or [self._bounds.draw(self._rng) for _ in question.clones]
        orders: list[Command] = []
        for key, donor, point in zip(question.clones, question.donors, points, strict=True):
            member = self._members.get(key)
            if member is None or not member.waits_for_ranking:
                continue  # the trial has ended, or was cloned, while the question was open
            member.is_ranked, member.waits_for_ranking = True, self._synch
            best = self._members.get(donor)
            if best is not None and best.is_ranked and best.score is not None:
                config = self._bounds.config_at(self._trials[donor].config, point)
                orders.append(self._exploit_other(key, self._exploit(donor, config)))
        if self._synch:
            there = {key: member for key, member in self._members.items() if member.waits_for_ranking}
            orders += self._resume_all(there)
        return tuple(orders)

    def on_trial_exploit(self, trial: Trial, donor: Trial) -> None:
        """Reset the trial's state and its baseline to those of the donor's checkpoint."""
        super().on_trial_exploit(trial, donor)
        self._baselines.pop(trial.trial_id, None)
        if trial.origin is not None:
            score = self._score(number(lookup(trial.origin.metrics, self._goal()[0])))
            if score is not None:
                self._baselines[trial.trial_id] = self._member(trial).time, score

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each trial, the observations and the open questions."""
        return {
            **super().state_dict(),
            "bounds": self._bounds.names,
            "changes": [[one.time, one.before, one.rate, *one.point] for one in self._changes],
            "baselines": {key: list(baseline) for key, baseline in self._baselines.items()},
            "questions": {str(key): list(astuple(one)) for key, one in self._questions.items()},
            "num_questions": self._num_questions,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If `hyperparam_bounds` has other hyperparameters.
        """
        names = self._bounds.names
        hint = "Use the same hyperparameters in the same order; their bounds may differ."
        same = names == state["bounds"]
        check(same, "hyperparam_bounds", f"of {', '.join(state['bounds'])} as before", names, hint)
        super().load_state_dict(state)
        self._changes = [
            Change(time, before, rate, tuple(point)) for time, before, rate, *point in state["changes"]
        ]
        self._baselines = {key: (time, score) for key, (time, score) in state["baselines"].items()}
        self._questions = {int(key): _Question(*question) for key, question in state["questions"].items()}
        self._num_questions = state["num_questions"]

    def _fill_in(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._bounds.fill_in(config, self._rng)

    def _explore(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._bounds.config_at(config, self._bounds.draw(self._rng))

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

    def _replace(self, trial: Trial, member: Member, upper: list[str]) -> Decision:
        if not self._changes:
            return super()._replace(trial, member, upper)
        reason = f"is among the worst of {self._num_ranked} by {self.metric}"
        member.waits_for_ranking = True
        self._free_place(member)
        self._open_question([trial.trial_id], upper)
        return Pause(f"{reason}; waits for its new configuration", hold=True)

    def _replace_all(
        self, lower: list[str], upper: list[str], there: Mapping[str, Member]
    ) -> tuple[Command, ...]:
        if not self._changes:
            return super()._replace_all(lower, upper, there)
        self._open_question(lower, upper)
        return ()

    def _open_question(self, clones: list[str], upper: list[str]) -> None:
        donors = [self._draw_donor(upper) for _ in clones]
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
            # Its score belongs to the configuration that is being replaced.
            self._members[key].is_ranked = False

    def _bandit_state(self, question: _Question) -> BanditState:
        points = (
            self._bounds.point(self._trials[key].config)
            for key, member in self._members.items()
            if member.turns and not (member.is_ranked or member.waits_for_ranking)
        )
        return BanditState(
            tuple(self._changes),
            [point for point in points if point is not None],
            time=question.time,
            rewards=question.rewards,
            seed=question.seed,
        )


def _answer_question(situation: BanditState) -> list[list[float]]:
    return [list(point) for point in suggest_points(situation)]


def _require_sklearn() -> None:
    # This does not import scikit-learn, which takes a second: the background thread does that.
    if find_spec("sklearn") is None:
        raise ConfigError("PB2 needs scikit-learn. Run: pip install scikit-learn")
