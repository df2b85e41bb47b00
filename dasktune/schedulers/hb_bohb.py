"""HyperBand for a searcher that learns from every rung."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.schedulers.hyperband import HyperBandScheduler
from dasktune.trial.metrics import lookup, number
from dasktune.trial.trial import Trial

__all__ = ["HyperBandForBOHB"]


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand that tells the searcher at which budget a result was judged.

    It takes the arguments of `HyperBandScheduler`, and differs from it in two points:

    - The bracket with the most trials comes first: their results at the lowest budget are what the
      searcher's first model is made of.
    - With a result that a trial comes to a rung with, the searcher is told
      ``hyperband_info/budget``: the budget of that rung, in units of `time_attr`; of the highest
      one if the trial jumped. The last result of a trial, at its end, tells it again.

    Notes
    -----
    As in [1]_, where each bracket is filled with configurations that a model of the largest budget
    with enough results proposes. A trial that waits at a rung takes up no place in the limit of a
    `ConcurrencyLimiter`: it waits for those that are still to be suggested.

    References
    ----------
    .. [1] Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale",
       ICML 2018, arXiv:1807.01774.

    Examples
    --------
    >>> scheduler = HyperBandForBOHB(metric="loss", mode="min", max_t=81)
    >>> scheduler.debug_string()
    'Using HyperBandForBOHB: num_stopped=0'
    """

    _LARGEST_FIRST = True

    def search_info(self, trial: Trial, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the budget of the rung that the trial came to with this result, if it did."""
        member = self._members.get(trial.trial_id)
        if member is None or member.budget is None:
            return {}
        if number(lookup(result, self.time_attr)) != member.time:
            return {}
        return {"hyperband_info/budget": member.budget}
