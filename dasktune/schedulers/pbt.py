"""Population based training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dasktune.errors import check
from dasktune.schedulers.explore import Mutations
from dasktune.schedulers.population import Population
from dasktune.trial.metrics import Mode

__all__ = ["PopulationBasedTraining"]


class PopulationBasedTraining(Population):
    """Replace the worst trials by clones of the best, with changed hyperparameters, as they train.

    So hyperparameters follow a schedule that nobody has to think of: what helps at this stage of
    the training spreads. The trainable must save checkpoints, and begin with the one that it is
    given, whatever trial it comes from.

    Parameters
    ----------
    time_attr : str, default="time_total_s"
        The metric that measures how long a trial has trained; it never falls.
    metric : str, optional
        What to rank by; the experiment's if left out.
    mode : {"min", "max"}, optional
        Which way `metric` is better; likewise.
    perturbation_interval : float, default=60
        How long a trial trains from one ranking to the next, in units of `time_attr`. More than 0.
    burn_in_period : float, default=0
        How long a trial trains at least before it is ranked first, in units of `time_attr`.
    hyperparam_mutations : dict, optional
        For each hyperparameter that may change a list of values, a domain (``uniform(0, 1)``), a
        function without arguments that draws a value, or a dict of these for a nested one. What a
        new trial's configuration lacks of these is drawn.
    quantile_fraction : float, default=0.25
        How large a part of the trials is replaced, and how large a part is cloned. In [0, 0.5].
    resample_probability : float, default=0.25
        How likely a hyperparameter is drawn anew rather than moved from the donor's value.
    perturbation_factors : tuple of float, default=(1.2, 0.8)
        What a number is multiplied by, one of these at random.
    custom_explore_fn : callable, optional
        ``custom_explore_fn(config)`` is given the changed configuration, and returns the one that
        the clone gets. It must depend on nothing else.
    log_config : bool, default=True
        Whether ``pbt_global.txt`` and ``pbt_policy_<trial>.txt`` are written.
    require_attrs : bool, default=True
        Whether a result without `time_attr` or `metric` is an error, which ends the run; else it is
        passed over.
    synch : bool, default=False
        Whether trials wait for each other at each ranking, so that all have trained as long.

    Raises
    ------
    ConfigError
        If there are neither mutations nor a `custom_explore_fn`, or an argument breaks its rule.

    See Also
    --------
    PopulationBasedTrainingReplay : Trains one model with the schedule that was found.

    Notes
    -----
    Section 3 of [1]_, with truncation selection. Precisely:

    - A trial is ranked at its first result at or beyond ``perturbation_interval`` after the last
      one. If it is among the worst ``ceil(n * quantile_fraction)`` of the n trials (at most half)
      by what each had at its last ranking, it becomes a clone of one of the best as many.
    - A clone has the checkpoint that its donor had when that was ranked, in memory if it can be,
      and goes on from its ``training_iteration``. Until then its rows are its own; those beyond are
      cut from its history, and the journal keeps them.
    - A donor that has no checkpoint, or is still saving its first, is not cloned: the trial goes
      on. One in memory that is lost with its worker is followed by an older one in the storage.
    - A score that is NaN, infinite or no number is the worst there is, and always replaced.
    - A value of a list or of :func:`~dasktune.choice` is drawn anew or becomes its neighbour in
      the list. A number is drawn anew or multiplied, and stays within its domain: bounds, quanta
      and integers. An integer moves by at least 1, a bool is only drawn.
    - If there are more trials than places, each trial makes room for others when it is ranked, and
      who was ranked least often is next. Else nobody is paused but who becomes a clone.
    - A searcher proposes the first configuration of each trial. From when the trial becomes a clone
      on, it hears no results of it, as they say nothing of what it has proposed; only, at the end,
      that it is over.

    With ``synch=True`` each trial is paused at a ranking until all that have not ended are there.

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

    def _filled(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._mutations.filled(config, self._rng)

    def _explored(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return self._mutations.explored(config, self._rng)
