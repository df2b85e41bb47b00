"""HyperBand (Li et al., 2018): several brackets of synchronous successive halving."""

from __future__ import annotations

from dasktune.schedulers.halving_family.synchronous_halving import SynchronousHalving
from dasktune.schedulers.rungs import bracket_table
from dasktune.trial.metrics import Mode


class HyperBandScheduler(SynchronousHalving):
    """Synchronous HyperBand: brackets that trade the number of trials against their first budget.

    At each rung, the trials of a bracket pause until all of them have reached it. Then the best
    ``1/reduction_factor`` continue, and the others are stopped.

    Parameters
    ----------
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained; it must not decrease.
    metric : str, optional
        The metric to compare trials by; by default that of `TuneConfig`.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise `metric`; by default that of `TuneConfig`.
    max_t : float, default=81
        Maximum budget of a trial, in units of `time_attr`. More than 0. R in the paper.
    reduction_factor : float, default=3
        Halving rate: the best ``1/reduction_factor`` of the trials at a rung continue. Unitless,
        more than 1. eta in the paper.
    stop_last_trials : bool, default=True
        Whether trials are stopped at `max_t`. If False, trials that reach it continue until they
        end by themselves.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    See Also
    --------
    SuccessiveHalvingScheduler : A single bracket of any size.
    ASHAScheduler : Asynchronous; trials do not wait for each other.

    Notes
    -----
    This is algorithm 1 of [1]_ with ``s_max = floor(log_eta(R))``:

    - Bracket ``s`` starts ``n = ceil((s_max + 1) * eta**s / (s + 1))`` trials. Rung ``i`` has the
      budget ``R * eta**(i - s)``, and ``max(1, floor(n * eta**-i))`` trials are promoted from rung
      ``i - 1`` to it. A trial reaches a fractional rung with its first result at or beyond it.
    - Brackets are filled in the order ``s = 0, 1, ..., s_max``, which then repeats. When the search
      ends, the last bracket counts as full with the trials that it has.
    - A trial that completes or fails leaves its bracket, and the others no longer wait for it. A
      trial that is retried after a failure, or after a restart of the driver, stays in its bracket.
    - A trial that is added after a bracket is full or was halved belongs to the next bracket.
    - A result that passes several rungs at once counts with the same score at each of them.
    - A score that is missing, not a number, NaN or infinite is the worst. Ties are won by the trial
      that was added first.
    - A result without a number in `time_attr` is ignored.

    Which trials are promoted does not depend on the order in which they reach a rung. A result
    costs O(1); the last result at a rung of n trials costs O(n log n).

    Paused trials keep a checkpoint in the worker's memory. A trainable without checkpoints starts
    from the beginning after each pause.

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

    #: Whether the bracket with the most trials is filled first.
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

    def _cohort_name(self, number: int) -> str:
        s = len(self._plan(number)[0]) - 1
        return f"bracket {number} (s={s})"
