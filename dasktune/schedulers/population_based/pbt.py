"""Population based training (Jaderberg et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.population_based.explore import Mutations
from dasktune.schedulers.population_based.population import Population
from dasktune.trial.metrics import Mode


class PopulationBasedTraining(Population):
    """Population based training (PBT): replace the worst trials by changed clones of the best.

    Hyperparameters follow a schedule that is found during training. The trainable must save
    checkpoints, and resume from the checkpoint that it gets, which may come from another trial.

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
    burn_in_period : float, default=0
        Minimum time before the first ranking of a trial, in units of `time_attr`.
    hyperparam_mutations : dict, optional
        The hyperparameters that may change. Each has a list of values, a domain such as
        ``uniform(0, 1)``, a function without arguments that draws a value, or a dict of these for
        nested configurations. If a new trial's configuration lacks a hyperparameter, it is drawn.
    quantile_fraction : float, default=0.25
        Fraction of the trials that are replaced, and equally of the trials that are their donors.
        In [0, 0.5].
    resample_probability : float, default=0.25
        Probability that a hyperparameter is drawn again instead of perturbed.
    perturbation_factors : tuple of float, default=(1.2, 0.8)
        Factors for numbers; one of them is drawn at random.
    custom_explore_fn : callable, optional
        ``custom_explore_fn(config)`` gets the changed configuration and returns the clone's
        configuration. The function must depend on its argument only.
    log_config : bool, default=True
        Whether ``pbt_global.txt`` and ``pbt_policy_<trial>.txt`` are written.
    require_attrs : bool, default=True
        Whether a result without `time_attr` or `metric` is an error, which ends the run. If False,
        it is ignored.
    synch : bool, default=False
        Whether all trials are ranked together: each pauses at the end of an interval until all
        unfinished trials have reached it.

    Raises
    ------
    ConfigError
        If there are neither mutations nor a `custom_explore_fn`, or an argument is invalid.

    See Also
    --------
    PopulationBasedTrainingReplay : Train one model with a schedule that PBT found.

    Notes
    -----
    This is section 3 of [1]_ with truncation selection:

    - A trial is ranked at its first result at least ``perturbation_interval`` after its last
      ranking. All n trials are sorted by their scores at their last rankings. If the trial is among
      the worst ``ceil(n * quantile_fraction)``, at most half, it becomes a clone of a random one of
      equally many best trials.
    - A clone resumes from the checkpoint that its donor had at the donor's last ranking, and from
      its ``training_iteration``. The checkpoint is in memory if possible. Results of the clone
      beyond this iteration are removed from its history; the journal keeps them.
    - A donor without a checkpoint, or whose first one is still being saved, is not cloned: the
      trial continues. If a checkpoint in memory is lost with its worker, an older one in the
      storage is used.
    - A trial with a score that is NaN, infinite or not a number is the worst and always replaced.
    - A value of a list or a :func:`~dasktune.choice` is drawn again or moved to a neighbour in the
      list. A number is drawn again or multiplied by a factor, and stays within its domain: bounds,
      quantum and integers. An integer changes by at least 1. A bool changes only when it is drawn
      again.
    - If there are more trials than places, a trial pauses after each ranking, and the trial with
      the fewest rankings starts next. Otherwise only trials that become clones are paused.
    - A searcher proposes the first configuration of each trial. Once the trial is a clone, the
      searcher gets no more results of it, only the notice that it has ended.

    With ``synch=True`` each trial pauses at a ranking until all unfinished trials have reached it.

    A ranking costs O(n log n).

    References
    ----------
    .. [1] Jaderberg et al., "Population Based Training of Neural Networks", arXiv:1711.09846.

    Examples
    --------
    >>> from dasktune.space import loguniform
    >>> pbt = PopulationBasedTraining(
    ...     time_attr="training_iteration",
    ...     metric="loss",
    ...     mode="min",
    ...     perturbation_interval=4,
    ...     hyperparam_mutations={"lr": loguniform(1e-4, 1e-1), "batch_size": [16, 32, 64]},
    ... )
    >>> pbt.debug_string()
    'PopulationBasedTraining: 0 exploits, 0 of 0 ranked'
    """

    def __init__(
        self,
        *,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: Mode | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )
        self._mutations = Mutations(
            hyperparam_mutations or {},
            resample_probability=resample_probability,
            perturbation_factors=perturbation_factors,
        )
        hint = "Name what may change, as in hyperparam_mutations={'lr': [0.1, 0.01]}."
        some = custom_explore_fn is not None or bool(self._mutations)
        check(some, "hyperparam_mutations", "given without a custom_explore_fn", {}, hint)

    def _fill_in(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._mutations.fill_in(config, self._rng)

    def _explore(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._mutations.explore(config, self._rng)
