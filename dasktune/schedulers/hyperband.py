"""HyperBand: successive halving with several trades between many trials and long ones."""

from __future__ import annotations

from dasktune.schedulers.halving import SynchronousHalving
from dasktune.schedulers.rungs import bracket_table
from dasktune.trial.metrics import Mode

__all__ = ["HyperBandScheduler"]


class HyperBandScheduler(SynchronousHalving):
    """Run trials in brackets, each of which begins with more trials or with longer ones.

    The trials of a bracket pause at each rung until all of them are there; then the best
    ``1/reduction_factor`` go on.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to judge by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    max_t : float, default=81
        Most that a trial gets, in units of `time_attr`. More than 0. The paper's R.
    reduction_factor : float, default=3
        One in so many goes on from a rung. Unitless, more than 1. The paper's eta.
    stop_last_trials : bool, default=True
        Whether trials end at `max_t`; if not, those that come there go on as they like.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    See Also
    --------
    SuccessiveHalvingScheduler : One such bracket, as large as you like.
    ASHAScheduler : Nobody waits for anybody.

    Notes
    -----
    Algorithm 1 of [1]_, with ``s_max = floor(log_eta(R))``. Precisely:

    - Bracket ``s`` begins with ``n = ceil((s_max + 1) * eta**s / (s + 1))`` trials, and its rung
      ``i`` is at ``R * eta**(i - s)``, where ``floor(n * eta**-i)`` of them go on, or one. A rung
      that is no whole number is at the first result beyond.
    - Brackets are filled in the order ``s = 0, 1, ..., s_max``, and then anew. When the search has
      no more trials, the last bracket is halved as if it had been that small from the start.
    - A trial that ends or fails for good leaves its bracket, and nobody waits for it any more. One
      that is tried again keeps its place, and so does one whose driver has died.
    - A trial that comes after a bracket was filled, or halved, belongs to the next one.
    - A trial that jumps over rungs stands at each of them with the score that it came with.
    - A score that is missing, no number, NaN or infinite is the worst there is. Of two trials with
      the same score, the one that was added first is better.
    - A result without a number in `time_attr` changes nothing.

    Which trials go on does not depend on the order in which they come to a rung. A result costs
    O(1), and the last one at a rung O(n log n) in the n trials there.

    Trials are paused with a checkpoint in memory. One that saves none begins anew each time.

    References
    ----------
    .. [1] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
       JMLR 18 (2018), arXiv:1603.06560.

    Examples
    --------
    >>> hyperband = HyperBandScheduler(metric="loss", mode="min", max_t=81, reduction_factor=3)
    >>> hyperband.debug_string()
    'Using HyperBand: num_stopped=0'
    """

    #: Whether the bracket with the most trials is the first.
    _LARGEST_FIRST = False

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Mode | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            max_t=max_t,
            reduction_factor=reduction_factor,
            stop_last_trials=stop_last_trials,
        )
        table = bracket_table(self.max_t, self.reduction_factor)
        self._table = table if self._LARGEST_FIRST else table[::-1]

    def _plan(self, number: int) -> tuple[list[float], int | None]:
        bracket = self._table[number % len(self._table)]
        return [budget for _, budget in bracket], bracket[0][0]

    def _named(self, number: int) -> str:
        s = len(self._plan(number)[0]) - 1
        return f"bracket {number} (s={s})"
