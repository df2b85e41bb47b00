"""ASHA (Li et al., 2020): asynchronous successive halving, stopping variant."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from dasktune.schedulers.decision import Continue, Decision, Stop
from dasktune.schedulers.halving_family.async_halving import AsyncHalving
from dasktune.schedulers.rungs import percentile
from dasktune.trial.metrics import Mode
from dasktune.trial.trial import Trial


class AsyncHyperBandScheduler(AsyncHalving):
    """ASHA: stop a trial at a rung unless it is in the best ``1/reduction_factor``.

    The rungs have the budgets ``grace_period * reduction_factor**k``. Trials do not wait for each
    other: the first trial at a rung continues, and each later one is compared with the trials that
    reached the rung before it.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str, optional
        The metric to compare trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    max_t : float, default=100
        Maximum budget of a trial, in units of `time_attr`. R in the paper.
    grace_period : float, default=1
        Budget of the first rung, in units of `time_attr`; no trial is stopped earlier. More than 0.
        r in the paper.
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
    This is algorithm 2 of [1]_, except that a trial which is not promoted is stopped, not paused:

    - The cutoff of a rung is the ``1 - 1/reduction_factor`` quantile, linearly interpolated, of the
      finite scores that other trials recorded there before. A trial whose score is below it stops;
      a trial with an equal score continues.
    - A result that passes several rungs at once is recorded at each of them with the same score.
      The decision is made at the highest one only.
    - A score that is missing, not a number, NaN or infinite is the worst: the trial stops if
      another trial has a finite score on the rung, and continues otherwise. The score is not
      recorded, so it does not change the cutoff.
    - A result without a number in `time_attr` is ignored.
    - The last result of a trial that ends by itself is recorded too.
    - The bracket of a trial is drawn once, with probabilities proportional to
      ``exp(number of its rungs)``.

    A result at a rung with k trials costs O(log k) comparisons and an insertion into a sorted list.

    References
    ----------
    .. [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
       arXiv:1810.05934.

    Examples
    --------
    >>> asha = ASHAScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3)
    >>> print(asha.debug_string())
    Using AsyncHyperBand: num_stopped=0
    Bracket: Iter 9.000: None | Iter 3.000: None | Iter 1.000: None
    """

    _known_as = "ASHAScheduler"

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Mode | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
        )
        self._quantile = 1 - 1 / self._factor
        #: The finite scores on each rung of each bracket, ascending.
        self._scores: list[list[list[float]]] = [[[] for _ in own] for own in self._budgets]

    def debug_string(self) -> str:
        """Return a line for each bracket with the cutoffs of its rungs (higher is better)."""
        lines = [f"Using AsyncHyperBand: num_stopped={self._num_stopped}"]
        for budgets, rungs in zip(self._budgets, self._scores, strict=True):
            cutoffs = (
                f"Iter {budget:.3f}: {percentile(scores, self._quantile)}"
                for budget, scores in reversed(list(zip(budgets, rungs, strict=True)))
            )
            lines.append(f"Bracket: {' | '.join(cutoffs)}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        """Return the rungs, the position of each trial, and the state of the random generator."""
        scores = [[list(rung) for rung in rungs] for rungs in self._scores]
        return {**super().state_dict(), "scores": scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises
        ------
        ConfigError
            If the state was saved by a scheduler with other rungs.
        """
        super().load_state_dict(state)
        self._scores = [[list(rung) for rung in rungs] for rungs in state["scores"]]

    def _reach(self, trial: Trial, result: Mapping[str, Any], bracket: int, rungs: range) -> Decision:
        value = self._value(trial, result)
        decision = self._decide(bracket, rungs[-1], value)
        score = self._score(value)
        if score is not None:
            for rung in rungs:
                insort(self._scores[bracket][rung], score)
        return decision

    def _decide(self, bracket: int, rung: int, value: float | None) -> Decision:
        cutoff = percentile(self._scores[bracket][rung], self._quantile)
        if cutoff is None:
            return Continue()
        place = self._place(bracket, rung)
        score = self._score(value)
        if score is None:
            return Stop(f"{self.metric} is {value} {place}, where others are finite")
        if score >= cutoff:
            return Continue()
        sign, side = (1, "below") if self.mode == "max" else (-1, "above")
        reason = f"{self.metric} {value:.6g} {side} cutoff {sign * cutoff:.6g} {place}"
        return Stop(reason, rung=rung, cutoff=sign * cutoff)


#: The name of the algorithm in the paper.
ASHAScheduler = AsyncHyperBandScheduler
