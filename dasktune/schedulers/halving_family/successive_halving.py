"""Synchronous successive halving of one cohort of trials (Jamieson and Talwalkar, 2016)."""

from __future__ import annotations

from dasktune.errors import check
from dasktune.schedulers.halving_family.synchronous_halving import SynchronousHalving
from dasktune.schedulers.metric_scheduler import finite_number
from dasktune.schedulers.rungs import halving_budgets
from dasktune.trial.metrics import Mode


class SuccessiveHalvingScheduler(SynchronousHalving):
    """Synchronous successive halving: at each rung the best ``1/reduction_factor`` continue.

    All trials pause at each rung until the last of them has reached it. Unlike `ASHAScheduler`, the
    result does not depend on which trials arrive first, but workers are idle while they wait for
    slow trials.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str, optional
        The metric to compare trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    max_t : float, default=81
        Maximum budget of a trial, in units of `time_attr`. R in [2]_.
    reduction_factor : float, default=3
        Halving rate: the best ``1/reduction_factor`` of the trials at a rung continue. Unitless,
        more than 1. eta in [2]_.
    grace_period : float, default=1
        Minimum budget of a trial, in units of `time_attr`, more than 0; r in [2]_. The first rung
        is the lowest ``max_t / reduction_factor**k`` that is not below `grace_period`.
    n_trials : int, optional
        Number of trials in a cohort, at least 1; further trials form the next cohort. By default
        one cohort of all trials of the search.
    stop_last_trials : bool, default=True
        Whether trials are stopped at `max_t`. If False, trials that reach it continue until they
        end by themselves.

    Raises
    ------
    ConfigError
        If not ``max_t >= grace_period > 0``, or another argument is invalid.

    See Also
    --------
    HyperBandScheduler : Tries several first budgets; use it if no good one is known.

    Notes
    -----
    This is [1]_ as the inner loop of [2]_, with ``s = floor(log_eta(R / r))``. Rung ``i`` has the
    budget ``R * eta**(i - s)``, and ``max(1, floor(n * eta**-i))`` of n trials train to it. Failed
    trials, results that pass several rungs at once, ties and undefined scores are handled as in
    `HyperBandScheduler`.

    Use at least ``eta**s`` trials, so that trials are compared at each rung below `max_t`.

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
        first = finite_number("grace_period", grace_period)
        check(0 < first <= self.max_t, "grace_period", f"in (0, max_t={max_t}]", grace_period)
        counts = n_trials is None or (type(n_trials) is int and n_trials >= 1)
        check(counts, "n_trials", "None or an int, at least 1", n_trials)
        self.n_trials = n_trials
        self._budgets = halving_budgets(first, self.max_t, self.reduction_factor)

    def _plan(self, number: int) -> tuple[list[float], int | None]:
        return self._budgets, self.n_trials
