"""HyperBand for BOHB: reports the budget of each rung to the searcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.schedulers.halving_family.hyperband import HyperBandScheduler
from dasktune.trial.metrics import lookup, number
from dasktune.trial.trial import Trial


class HyperBandForBOHB(HyperBandScheduler):
    """HyperBand that reports the budget of each rung to the searcher, for :class:`TuneBOHB`.

    It has the arguments of `HyperBandScheduler` and differs from it in two points:

    - The bracket with the most trials is filled first, because the searcher fits its first model to
      their results at the lowest budget.
    - When a trial reaches a rung, the searcher gets its result with the entry
      ``hyperband_info/budget``: the rung's budget in units of `time_attr`, or that of the highest
      rung if the trial reached several at once. The trial's last result has the entry again.

    Notes
    -----
    In [1]_ each bracket is filled with configurations from a model of the largest budget that has
    enough results. A trial that waits at a rung does not count towards the limit of a
    `ConcurrencyLimiter`, since it waits for trials that have not been suggested yet.

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
        """Return the budget of the rung that the trial reached with this result, if any."""
        member = self._members.get(trial.trial_id)
        if member is None or member.budget is None:
            return {}
        if number(lookup(result, self.time_attr)) != member.time:
            return {}
        return {"hyperband_info/budget": member.budget}
