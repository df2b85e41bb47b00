"""Multi-objective ASHA (Schmucker et al., 2021): successive halving by several metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from dasktune.errors import check
from dasktune.schedulers.decision import Continue, Decision, Stop
from dasktune.schedulers.halving_family.async_halving import AsyncHalving
from dasktune.schedulers.metric_scheduler import check_mode, check_name
from dasktune.schedulers.pareto import ParetoFronts
from dasktune.trial.metrics import Mode, lookup, number
from dasktune.trial.trial import Trial

_METRICS: Final = "a list of at least two different names"


class MultiObjectiveASHAScheduler(AsyncHalving):
    """ASHA for several metrics: rank trials at a rung by Pareto fronts, and stop the worst.

    The first front holds the trials that no other trial at the rung dominates. The second front
    holds those that only trials of the first front dominate, and so on.

    Parameters
    ----------
    metrics : sequence of str
        Names of the metrics, at least two.
    modes : {"min", "max"} or sequence of them
        Whether to minimise or maximise; one mode for all metrics, or one for each.
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it must not decrease.
    max_t : float, default=100
        Maximum budget of a trial, in units of `time_attr`. R in the paper.
    grace_period : float, default=1
        Budget of the first rung, in units of `time_attr`; no trial is stopped earlier. More than 0.
    reduction_factor : float, default=4
        Halving rate: about the best ``1/reduction_factor`` of the trials at a rung continue.
        Unitless, more than 1. eta in the paper.
    brackets : int, default=1
        Number of brackets. Bracket s leaves out the lowest s rungs; a bracket without rungs trains
        its trials to `max_t`.
    stop_last_trials : bool, default=True
        Whether trials are stopped at `max_t`.

    Raises
    ------
    ConfigError
        If not ``max_t >= grace_period > 0``, or another argument is invalid.

    Notes
    -----
    This is [1]_, except that a trial which is not promoted is stopped, not paused:

    - A trial continues if it is among the best ``max(1, floor(n / reduction_factor))`` of the n
      trials that have reached the rung, itself included. Trials are ordered by front. If only a
      part of a front fits, its trials with the largest crowding distance [2]_ continue, and so do
      ties.
    - A result that passes several rungs at once is recorded at each of them. The decision is made
      at the highest one only.
    - If a score is missing, not a number, NaN or infinite, the trial is the worst: it stops if
      another trial has finite scores on the rung, and continues otherwise. It does not count in n.
    - The last result of a trial that ends by itself is recorded too.

    The metric of `TuneConfig`, if any, is used by ``get_best_result`` only.

    A result costs a few NumPy operations for each front that it is compared with. With two
    conflicting metrics the cost grows far more slowly than the number of trials on the rung.

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
        self._fronts = [[ParetoFronts() for _ in budgets] for budgets in self._budgets]

    def set_search_properties(self, metric: str | None, mode: Mode | None) -> None:
        """Ignore the experiment's metric and mode: the constructor sets `metrics` and `modes`."""

    def debug_string(self) -> str:
        """Return a line for each bracket with the size of the first front at each rung."""
        lines = [f"Using MultiObjectiveASHA: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._fronts, strict=True):
            counts = (
                f"Iter {budget:.3f}: {sum(fronts.sizes[:1])} of {len(fronts)} in front"
                for budget, fronts in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(counts)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, the position of each trial, and the state of the random generator."""
        fronts = [[rung.to_lists() for rung in rungs] for rungs in self._fronts]
        return {**super().state_dict(), "fronts": fronts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved by a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._fronts = [[ParetoFronts.from_lists(rung) for rung in rungs] for rungs in state["fronts"]]

    def _reach(self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range) -> Decision:
        own = self._fronts[bracket]
        point = self._point(trial, result)
        if point is None:
            if not len(own[rungs[-1]]):
                return Continue()
            values = ", ".join(f"{name} {lookup(result, name)}" for name in self.metrics)
            return Stop(f"{values} {self._place(bracket, rungs[-1])}, where others are finite")
        for index in rungs[:-1]:
            own[index].add(point)
        fronts = own[rungs[-1]]
        front = fronts.add(point)
        places = max(1, int(len(fronts) / self._factor))
        ahead = fronts.count_better(point, front, places)
        if ahead < places:
            return Continue()
        return Stop(
            f"in front {front + 1} of {len(fronts.sizes)}, number {ahead + 1} of {len(fronts)} "
            f"{self._place(bracket, rungs[-1])}, of which the best {places} continue"
        )

    def _point(self, trial: Trial, result: Mapping[str, Any]) -> list[float] | None:
        """Return the scores (higher is better), or None unless all of them are finite."""
        point = []
        for name, mode in zip(self.metrics, self.modes, strict=True):
            value = number(lookup(result, name))
            if value is None:
                self._warn(trial, name)
            elif isfinite(value):
                point.append(value if mode == "max" else -value)
        return point if len(point) == len(self.metrics) else None
