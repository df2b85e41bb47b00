"""Successive halving of one cohort of trials."""

from __future__ import annotations

from dasktune.errors import check
from dasktune.schedulers.by_metric import real
from dasktune.schedulers.halving import SynchronousHalving
from dasktune.schedulers.rungs import halving_budgets
from dasktune.trial.metrics import Mode

__all__ = ["SuccessiveHalvingScheduler"]


class SuccessiveHalvingScheduler(SynchronousHalving):
    """Train all trials a little, the best of them more, and the best of those up to `max_t`.

    All trials pause at each rung until everybody is there; then the best ``1/reduction_factor`` go
    on. So nobody is judged by who happened to come first, as with `ASHAScheduler`; but workers
    stand idle where a few trials are slow.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to judge by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    max_t : float, default=81
        Most that a trial gets, in units of `time_attr`. The paper's R.
    reduction_factor : float, default=3
        One in so many goes on from a rung. Unitless, more than 1. The paper's eta.
    grace_period : float, default=1
        Least that a trial gets; the first rung is here or less than `reduction_factor` times as
        high. More than 0. The paper's r.
    n_trials : int, optional
        How many trials are compared with each other; at least 1. Those that come after them are
        the next cohort. All that the search has if left out.
    stop_last_trials : bool, default=True
        Whether trials end at `max_t`; if not, those that come there go on as they like.

    Raises
    ------
    ConfigError
        If ``max_t >= grace_period > 0`` does not hold, or another argument breaks its rule.

    See Also
    --------
    HyperBandScheduler : For when nobody knows how soon trials can be told apart.

    Notes
    -----
    [1]_ as the inner loop of [2]_, with ``s = floor(log_eta(R / r))``: rung ``i`` is at
    ``R * eta**(i - s)``, where ``floor(n * eta**-i)`` of n trials go on, or one. Ends, failures,
    jumps, ties and scores that are not finite are dealt with as by `HyperBandScheduler`.

    So that somebody comes to `max_t` who has beaten others at each rung, there should be ``eta**s``
    trials or more.

    References
    ----------
    .. [1] Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
       Optimization", AISTATS 2016, arXiv:1502.07943.
    .. [2] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
       JMLR 18 (2018), arXiv:1603.06560.

    Examples
    --------
    >>> halving = SuccessiveHalvingScheduler(metric="loss", mode="min", max_t=27, n_trials=27)
    >>> halving.debug_string()
    'Using SuccessiveHalving: num_stopped=0'
    """

    _ARGUMENTS = "max_t, reduction_factor and grace_period"

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Mode | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        grace_period: float = 1,
        n_trials: int | None = None,
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
        first = real("grace_period", grace_period)
        check(0 < first <= self.max_t, "grace_period", f"in (0, max_t={max_t}]", grace_period)
        counts = n_trials is None or (type(n_trials) is int and n_trials >= 1)
        check(counts, "n_trials", "None or an int, at least 1", n_trials)
        self.n_trials = n_trials
        self._budgets = halving_budgets(first, self.max_t, self.reduction_factor)

    def _plan(self, number: int) -> tuple[list[float], int | None]:
        return self._budgets, self.n_trials
