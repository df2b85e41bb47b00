"""Asynchronous successive halving by several metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from dasktune.errors import check
from dasktune.schedulers.async_halving import AsyncHalving
from dasktune.schedulers.by_metric import check_mode, check_name
from dasktune.schedulers.decision import Continue, Decision, Stop
from dasktune.schedulers.fronts import Fronts
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.trial import Trial

__all__ = ["MultiObjectiveASHAScheduler"]

_METRICS: Final = "a list of at least two different names"


class MultiObjectiveASHAScheduler(AsyncHalving):
    """Stop a trial at each rung unless it is in the rung's best ``1/reduction_factor`` by fronts.

    Nobody in the first front of a rung is worse than another trial in all metrics; likewise of
    those in the second front, once the first is taken away; and so on.

    Parameters
    ----------
    metrics : sequence of str
        What to judge by; at least two.
    modes : {"min", "max"} or sequence of them
        Which way each of `metrics` is better; one for all, or one for each.
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it never falls.
    max_t : float, default=100
        Most that a trial gets, in units of `time_attr`. The paper's R.
    grace_period : float, default=1
        First rung, in units of `time_attr`; nobody is judged earlier. More than 0.
    reduction_factor : float, default=4
        One in so many survives a rung. Unitless, more than 1. The paper's eta.
    brackets : int, default=1
        How many sets of rungs there are; each starts one rung later than the one before. Those
        beyond the number of rungs have none, and let their trials train up to `max_t`.
    stop_last_trials : bool, default=True
        Whether trials end at `max_t`.

    Raises
    ------
    ConfigError
        If ``max_t >= grace_period > 0`` does not hold, or another argument breaks its rule.

    Notes
    -----
    After [1]_, with the one change that a trial which is not promoted is stopped rather than
    paused. Precisely:

    - Of the n trials that have come to a rung so far, itself included, a trial must be among the
      best ``max(1, floor(n / reduction_factor))``. Better is who is in a better front, and within
      the front that does not fit as a whole who has the larger crowding distance [2]_; a tie goes
      on.
    - A trial that jumps over rungs is recorded at each of them with the scores that it crosses them
      with; it is judged on the highest only.
    - If any score is missing, no number, NaN or infinite, the trial is worse than those of whom
      none is: it stops if there is such a one on the rung, and goes on otherwise. It does not count
      in n.
    - A trial that ends by itself is recorded too.

    The experiment's own metric, if it has one, says what ``get_best_result`` looks at, and nothing
    here.

    A result costs a few operations of NumPy for the fronts that it is compared with: not quite
    flat, but for two metrics that are at odds far below linear in the trials on the rung.

    References
    ----------
    .. [1] Schmucker et al., "Multi-objective Asynchronous Successive Halving", 2021,
       arXiv:2106.12639.
    .. [2] Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE
       Transactions on Evolutionary Computation 6 (2), 2002.

    Examples
    --------
    >>> asha = MultiObjectiveASHAScheduler(
    ...     metrics=["error", "seconds"], modes="min", max_t=9, reduction_factor=3
    ... )
    >>> print(asha.debug_string())
    Using MultiObjectiveASHA: num_stopped=0
    Bracket: Iter 9.000: 0 of 0 in front | Iter 3.000: 0 of 0 in front | Iter 1.000: 0 of 0 in front
    """

    def __init__(
        self,
        *,
        metrics: Sequence[str],
        modes: Mode | Sequence[Mode],
        time_attr: str = "training_iteration",
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=None,
            mode=None,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
        )
        given: object = metrics
        check(isinstance(given, list | tuple), "metrics", _METRICS, given)
        for name in metrics:
            check_name("each of metrics", name)
        check(len(set(metrics)) == len(metrics) >= 2, "metrics", _METRICS, metrics)
        each: list[Any] = list(modes) if isinstance(modes, list | tuple) else [modes] * len(metrics)
        check(len(each) == len(metrics), "modes", "one mode, or one for each metric", modes)
        for mode in each:
            check_mode(mode)
            check(mode is not None, "modes", "'min' or 'max' for each metric", modes)
        self.metrics = tuple(metrics)
        self.modes: tuple[Mode, ...] = tuple(each)
        self._fronts = [[Fronts() for _ in budgets] for budgets in self._budgets]

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Take nothing: what this judges by was said at its making."""

    def debug_string(self) -> str:
        """Return a line for each bracket: how many at its rungs are in the first front."""
        lines = [f"Using MultiObjectiveASHA: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._fronts, strict=True):
            told = (
                f"Iter {budget:.3f}: {sum(fronts.sizes[:1])} of {len(fronts)} in front"
                for budget, fronts in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(told)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, where each trial is, and the state of the random generator."""
        fronts = [[rung.state() for rung in rungs] for rungs in self._fronts]
        return {**super().state_dict(), "fronts": fronts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises
        ------
        ConfigError
            If it comes from a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._fronts = [[Fronts.from_state(rung) for rung in rungs] for rungs in state["fronts"]]

    def _reach(
        self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range
    ) -> Decision:
        own = self._fronts[bracket]
        point = self._point(trial, result)
        if point is None:
            if not len(own[rungs[-1]]):
                return Continue()
            told = ", ".join(f"{name} {lookup(result, name)}" for name in self.metrics)
            return Stop(f"{told} {self._place(bracket, rungs[-1])}, where others are finite")
        for index in rungs[:-1]:
            own[index].add(point)
        fronts = own[rungs[-1]]
        front = fronts.add(point)
        places = max(1, int(len(fronts) / self._factor))
        ahead = fronts.ahead(point, front, places)
        if ahead < places:
            return Continue()
        return Stop(
            f"in front {front + 1} of {len(fronts.sizes)}, number {ahead + 1} of {len(fronts)} "
            f"{self._place(bracket, rungs[-1])}, of which the best {places} go on"
        )

    def _point(self, trial: Trial, result: Mapping[str, Any]) -> list[float] | None:
        """Return the scores, higher is better; None unless all of them are finite."""
        point = []
        for name, mode in zip(self.metrics, self.modes, strict=True):
            value = number(lookup(result, name))
            if value is None:
                self._warn(trial, name)
            elif isfinite(value):
                point.append(value if mode == "max" else -value)
        return point if len(point) == len(self.metrics) else None
