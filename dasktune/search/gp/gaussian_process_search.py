"""`GaussianProcessSearch`, the searcher with a Gaussian process over learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import inf
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dasktune.errors import ConfigError, check
from dasktune.search.gp.kernel_features import KernelFeatures
from dasktune.search.gp.resource_gp import (
    ResourceGP,
    expected_improvement,
    fit_hyperparameters,
    prior_mean,
)
from dasktune.search.gp.rung_losses import LossTable, RungLosses
from dasktune.search.model_searcher import ModelSearcher, finite
from dasktune.search.searcher import STOPPED_EARLY, EvaluatedPoint
from dasktune.search.spaces.unit_cube import Point, neighbours, random_points
from dasktune.space.checks import as_float, as_int
from dasktune.trial.metrics import Metric, Modes, lookup, number

#: Growth of the data after which the hyperparameters of the process are fitted again.
_GROWTH: Final = 0.12

#: Number of random candidates, of the best configurations around which there are more, and of the
#: neighbours of each of them.
_RANDOM, _CENTRES, _NEIGHBOURS = 300, 3, 30

#: Decimals to which the coordinates of equal configurations agree.
_DIGITS: Final = 9


class GaussianProcessSearch(ModelSearcher[int]):
    """Suggest configurations by a Gaussian process over configurations and resources. Needs SciPy.

    It learns from the results of all rungs at once, also from those of running and paused trials.
    This is a variant of MOBSTER [1]_. Use it with :class:`~dasktune.schedulers.ASHAScheduler`,
    :class:`~dasktune.schedulers.PromotingASHAScheduler`, any other scheduler, or without one.

    Parameters
    ----------
    space : mapping, optional
        The search space; by default the experiment's ``param_space``.
    metric : str, optional
        The metric to optimise. By default the experiment's.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise. By default the experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random.
    seed : int, optional
        The seed of all randomness; by default the experiment's.
    time_attr : str, default="training_iteration"
        The metric that measures how long a trial has trained: the resource.
    grace_period : float, default=1
        The first rung, in units of `time_attr`, > 0. Set it and `reduction_factor` to those of the
        scheduler.
    reduction_factor : float, default=4
        The rungs are ``grace_period * reduction_factor**k``. Unitless, > 1.
    random_fraction : float, default=0.25
        The fraction of suggestions that are random, in [0, 1]. They protect the search from a model
        that is wrong, for instance where learning curves cross.
    n_initial_points : int, default=10
        Suggestions are random until this number of configurations have a result. At least 1.
    max_observations : int, default=160
        The largest number of results that the process is fitted to, at least 2. The time of a fit
        grows with its third power.
    max_concurrent : int, default=0
        The largest number of unfinished trials, not counting trials paused at a rung; 0 for no
        limit.

    Raises
    ------
    ConfigError
        If an argument is invalid, the space has a grid, a domain without bounds, or no domain, or
        SciPy is missing.

    See Also
    --------
    TuneBOHB : Models the good and the bad configurations of one rung, which takes less time.

    Notes
    -----
    The searcher records the first result of a trial at or after each rung, and the last result of
    a trial that was not stopped early. A trial that failed, and a result that is not finite, count
    as the worst. At each rung the losses, or their logarithms if none is negative, are clipped at
    their 90 % quantile and standardised.

    The covariance of two results is ``M(x, x') (w + (1 - w) exp(-|u - u'| / l))``. M is the Matern
    kernel with smoothness 5/2 and a length scale for each parameter, u is a quarter of the number
    of the rung. Length scales, w, l and the noise have priors. Their most probable values are
    improved by 8 steps of L-BFGS whenever the data have grown by 12 %.

    The suggestion is the candidate with the largest expected improvement on the best predicted
    configuration, at the highest rung with at least 6 results. For this the process has also
    observed its own predictions for the running trials at their next rungs (the kriging believer).
    Running are those that have not reported yet, or have reported since their last rung: the others
    may be paused.
    Candidates are 300 random configurations, 30 neighbours of each of the best 3, and 90 of the
    best candidate. If there are more than `max_observations` results, half of those in the model
    are from the highest rungs, the others random.

    With the default `max_observations` and 6 parameters, a suggestion takes 7 ms of processor time
    after 100 results and 16 ms after 1,000; with a fit, 12 and 67 ms (medians on 2026-11-26, one
    thread of a shared virtual core). After 1,000 results there is a fit every 120 results.

    The `intermediate_values` of a point that was evaluated elsewhere are the values after 1, 2, 3,
    ... units of `time_attr`. If they are given, its `value` is ignored. Without them a pruned point
    is ignored, and any other counts as trained as long as the longest trial.

    A parameter inside a choice exists only with its option: see
    :class:`~dasktune.search.gp.kernel_features.KernelFeatures`.

    The same results give the same suggestions, in whatever order they arrived, also after a
    restore; with another linear algebra library (BLAS), the last digits may differ.

    The differences to [1]_ are the kernel over resources, which has no term for the shape of a
    curve; the standardisation; and the random fraction.

    References
    ----------
    .. [1] Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture Search",
       2020, arXiv:2003.10865.

    Examples
    --------
    >>> from numpy.random import SeedSequence
    >>> from dasktune.space import uniform
    >>> search = GaussianProcessSearch({"x": uniform(-1, 1)}, metric="loss", mode="min")
    >>> search.set_search_properties(None, None, {}, seed=SeedSequence(0))
    False
    >>> for number in range(30):
    ...     x = search.suggest(f"t{number}")["x"]
    ...     search.on_trial_complete(f"t{number}", {"loss": x**2, "training_iteration": 1})
    >>> late = [abs(search.suggest(f"u{number}")["x"]) for number in range(20)]
    >>> sum(x < 0.1 for x in late) > 10
    True
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        *,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        time_attr: str = "training_iteration",
        grace_period: float = 1,
        reduction_factor: float = 4,
        random_fraction: float = 0.25,
        n_initial_points: int = 10,
        max_observations: int = 160,
        max_concurrent: int = 0,
    ) -> None:
        _require_scipy()
        check(isinstance(time_attr, str), "time_attr", "the name of a reported number", time_attr)
        self.time_attr = time_attr
        first, factor = as_float("grace_period", grace_period), as_float("reduction_factor", reduction_factor)
        check(0 < first < inf, "grace_period", "finite and > 0", grace_period)
        check(1 < factor < inf, "reduction_factor", "finite and > 1", reduction_factor)
        self.random_fraction = as_float("random_fraction", random_fraction)
        is_fraction = 0 <= self.random_fraction <= 1
        check(is_fraction, "random_fraction", "from 0 to 1", random_fraction)
        self.n_initial_points = as_int("n_initial_points", n_initial_points, least=1)
        self.max_observations = as_int("max_observations", max_observations, least=2)
        self._evidence = RungLosses(first, factor)
        #: The hyperparameters of the process, and the number of results that they were fitted to.
        self._theta: list[float] | None = None
        self._num_fitted = 0
        #: The number of evaluated points that were added.
        self._num_evaluated = 0
        super().__init__(
            space,
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=seed,
            max_concurrent=max_concurrent,
        )

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        super()._set_space(space, name)
        self._features = KernelFeatures(self._flat.parameters)

    def _opened(self, number: int, config: Mapping[str, Any]) -> int:
        point = self._point(config)
        if point is not None:
            self._evidence.add(number, point)
        return number

    def _remove(self, opened: int) -> None:
        self._evidence.remove(opened)

    def _propose(self, rng: Generator) -> dict[str, Any] | None:
        """Return the model's best candidate; None if the suggestion must be random."""
        if rng.random() < self.random_fraction or self._evidence.num_observed < self.n_initial_points:
            return None
        table = self._evidence.table()
        process, rows = self._process(table, rng)
        seen = self._features.vectors(self._evidence.points(np.unique(table.numbers[rows])))
        means, _ = process.predict(seen, np.full(len(seen), table.target))
        believer = process.believing(*self._pending())
        order = np.argsort(means, kind="stable")[:_CENTRES]
        centres = self._evidence.points(np.unique(table.numbers[rows])[order])
        options = self._cube.options
        candidates = [
            random_points(options, _RANDOM, rng),
            neighbours(centres, options, _NEIGHBOURS, rng),
        ]
        best = self._best_candidate(np.concatenate(candidates), believer, table.target, means.min())
        if best is None:
            return None
        point, _ = best
        nearby = neighbours(point[None], options, _CENTRES * _NEIGHBOURS, rng)
        better = self._best_candidate(nearby, believer, table.target, means.min())
        if better is not None and better[1] > best[1]:
            point = better[0]
        return self._variants.fill_in(self._flat.point(self._cube.values(point)), rng)

    def _process(self, table: LossTable, rng: Generator) -> tuple[ResourceGP, NDArray[np.int64]]:
        """Return the process of a part of the results, and the rows of this part."""
        rows = table.sample(self.max_observations, rng)
        vectors = self._features.vectors(self._evidence.points(table.numbers[rows]))
        owners, u, z = self._features.owners, table.resources[rows], table.losses[rows]
        size = len(table.losses)
        theta = prior_mean(len(self._flat.parameters)) if self._theta is None else np.array(self._theta)
        if self._theta is None or size - self._num_fitted >= max(1, int(_GROWTH * size)):
            theta = fit_hyperparameters(theta, vectors, owners, u, z)
            self._theta, self._num_fitted = theta.tolist(), size
        return ResourceGP(theta, owners, vectors, u, z), rows

    def _pending(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the vectors of the running trials, and the resources of their next rungs."""
        running = [number for trial_id, number in self._open.items() if trial_id not in self._paused]
        numbers, resources = self._evidence.pending(running)
        if not numbers:
            return np.empty((0, len(self._features.owners))), resources
        return self._features.vectors(self._evidence.points(numbers)), resources

    def _best_candidate(
        self, points: NDArray[np.float64], process: ResourceGP, target: float, best: float
    ) -> tuple[NDArray[np.float64], float] | None:
        """Return the candidate with the largest expected improvement, and the improvement.

        Return None if all of them are configurations that were suggested before.
        """
        active = self._features.without_inactive(self._cube.rounded(points))
        known = {*_keys(self._evidence.points(self._evidence.numbers))}
        is_new = np.array([key not in known for key in _keys(active)])
        if not is_new.any():
            return None
        points, active = points[is_new], active[is_new]
        mean, variance = process.predict(self._features.vectors(active), np.full(len(active), target))
        gains = expected_improvement(mean, variance, best)
        # The first of equal ones, so that a suggestion does not depend on the order of a library.
        index = int(np.argmax(gains))
        return points[index], float(gains[index])

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Record the result if it is the first one at a rung."""
        loss = self._reported_loss(result)
        if trial_id in self._open and loss is not None:
            self._evidence.observe(self._open[trial_id], time=self._time(result), loss=loss)

    def _fail(self, trial_id: str, opened: int) -> None:
        self._evidence.fail(opened)

    def _finish(self, trial_id: str, opened: int, result: Mapping[str, Any]) -> None:
        loss = self._reported_loss(result)
        if loss is None:
            # A trial that never reported the metric counts as failed.
            if not self._evidence.is_observed(opened):
                self._evidence.fail(opened)
        elif result.get(STOPPED_EARLY):
            self._evidence.observe(opened, time=self._time(result), loss=loss)
        else:
            self._evidence.finish(opened, time=self._time(result), loss=loss)

    def _reported_loss(self, result: Mapping[str, Any]) -> float | None:
        """Return the loss; None if the metric is missing or not a number."""
        value = number(lookup(result, str(self.metric)))
        return None if value is None else self._loss(value)

    def _time(self, result: Mapping[str, Any]) -> float | None:
        return finite(lookup(result, self.time_attr))

    def _learn_at(self, point: Point, evaluated: EvaluatedPoint) -> None:
        # Negative, so that trials keep their numbers.
        self._num_evaluated += 1
        own = -self._num_evaluated
        self._evidence.add(own, point)
        steps = [self._loss(value) for value in evaluated.intermediate_values]
        for time, loss in enumerate(steps, 1):
            self._evidence.observe(own, time=time, loss=loss)
        if evaluated.error:
            self._evidence.fail(own)
        elif steps and not evaluated.pruned:
            self._evidence.finish(own, time=len(steps), loss=steps[-1])
        elif not evaluated.pruned:
            self._evidence.finish(own, time=None, loss=self._loss(evaluated.value))

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished trials, all recorded losses, and the last fit."""
        return {
            **super().state_dict(),
            "evidence": self._evidence.state_dict(),
            "theta": None if self._theta is None else list(self._theta),
            "num_fitted": self._num_fitted,
            "num_evaluated": self._num_evaluated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._evidence.load_state_dict(state["evidence"])
        self._theta = None if state["theta"] is None else list(state["theta"])
        self._num_fitted = state["num_fitted"]
        self._num_evaluated = state["num_evaluated"]


def _keys(points: NDArray[np.float64]) -> list[tuple[float, ...]]:
    """Return equal keys for equal configurations; a parameter that does not exist is -1."""
    return [tuple(row) for row in np.nan_to_num(points, nan=-1.0).round(_DIGITS).tolist()]


def _require_scipy() -> None:
    # This does not import SciPy, which takes a tenth of a second: the first fit does that.
    if find_spec("scipy") is None:
        message = "GaussianProcessSearch needs SciPy, which is not installed. Run: pip install scipy"
        raise ConfigError(message)
