"""`WarmStart`, the searcher that learns from earlier experiments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import numpy as np
from numpy.random import Generator, SeedSequence
from numpy.typing import NDArray

from dasktune.errors import check, without_passwords
from dasktune.search.gp.kernel_features import KernelFeatures
from dasktune.search.gp.resource_gp import ResourceGP, fit_hyperparameters, prior_mean
from dasktune.search.model_searcher import ModelSearcher
from dasktune.search.searcher import STOPPED_EARLY, EvaluatedPoint
from dasktune.search.spaces.unit_cube import Point, random_points
from dasktune.search.warm.config_features import ConfigFeatures
from dasktune.search.warm.copula_prior import CopulaPrior, normal_scores, require_sklearn
from dasktune.search.warm.own_trials import OwnTrials
from dasktune.search.warm.past_experiments import PastExperiment
from dasktune.text.formatting import plural
from dasktune.trial.metrics import Metric, Modes, lookup, number

logger = logging.getLogger(__name__)

#: Number of random configurations among which a suggestion is the best one.
_CANDIDATES: Final = 300

#: The number of ended trials from which their results count.
LEAST_OWN_TRIALS: Final = 4

#: The largest number of trials that the process is fitted to; its time grows with the third power.
_MOST_TRIALS: Final = 150

#: Kendall's tau between what the regression expects on a new data set and its losses, as measured
#: (`benchmarks.search_quality.warm_starts`); and the number of pairs that speak for it beforehand.
_USUAL_TAU: Final = 0.4
_PAIRS: Final = 6


class WarmStart(ModelSearcher["tuple[int, Point] | None"]):
    """Suggest configurations that were good in earlier experiments. Needs scikit-learn.

    The search spaces may differ: parameters are matched by their names. As soon as trials of the
    new experiment have ended, their results decide how much the earlier ones count.

    Parameters
    ----------
    past : sequence
        The earlier experiments, at least one: paths or URLs, objects
        :class:`~dasktune.ResultGrid` or :class:`~dasktune.ExperimentAnalysis`, lists of
        :class:`~dasktune.Result`, or lists of pairs ``(config, value)``. If the metric had another
        name there, a pair of the experiment and that name. A path is read once, when a `Tuner` is
        created; nothing in it is unpickled. An experiment needs at least 10 full trials.
    space : mapping, optional
        The search space; by default the experiment's ``param_space``.
    method : {"copula"}, default="copula"
        How earlier experiments are combined; see the notes.
    guard : bool, default=True
        Whether results of the new experiment reduce the weight of the earlier ones.
    metric : str, optional
        The metric to optimise. By default the experiment's.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise; the same as in the earlier experiments. By default the
        experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random.
    seed : int, optional
        The seed of all randomness; by default the experiment's.
    max_concurrent : int, default=0
        The largest number of unfinished trials, not counting trials paused at a rung; 0 for no
        limit.

    Raises
    ------
    ConfigError
        If an argument is invalid, an experiment of `past` has fewer than 10 full trials or
        optimised the metric in the other direction, no parameter of the space occurs in any of
        them, the space has a grid, a domain without bounds, or no domain, or scikit-learn is
        missing.

    Notes
    -----
    A *full* trial is one whose code returned, or that reported as often as the longest of the
    others; trials that failed or that a scheduler stopped early are left out. Within each
    experiment, the last values of the n full trials become normal scores
    ``z = Phi^-1((rank + 1/2) / n)``, so that experiments are comparable whatever their values are.
    One regression, gradient boosting with 80 trees, predicts z from the configuration for all
    experiments together [1]_. Missing parameters are missing values. A suggestion is the smallest
    of 300 random draws: ``m(x) + s e`` with the prediction m(x) for a random configuration, the
    standard deviation s of the regression's errors on held-out trials, and a standard normal e
    (Thompson sampling).

    With `guard`, and as soon as 4 trials of the new experiment have ended, their own normal scores
    are modelled by a Gaussian process, see
    :func:`~dasktune.search.warm.warm_start.prior_weight`. A trial that was stopped early counts
    as worse than all that were trained longer, a failed one as the worst.
    A point that was evaluated elsewhere (:meth:`add_evaluated_point`) counts as an ended trial of
    the new experiment.

    The same results give the same suggestions, in whatever order they arrived, also after a
    restore. With another version of scikit-learn or another linear algebra library they may differ.

    References
    ----------
    .. [1] Salinas, Shen and Perrone, "A Quantile-based Approach for Hyperparameter Transfer
       Learning", ICML 2020, arXiv:1909.13595.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> earlier = [({"x": x / 20}, (x / 20 - 0.7) ** 2) for x in range(20)]
    >>> search = WarmStart([earlier], {"x": uniform(0, 1)}, metric="loss", mode="min", seed=0)
    >>> first = [search.suggest(f"t{number}")["x"] for number in range(20)]
    >>> sum(0.5 < x < 0.9 for x in first) > 12
    True
    """

    _other_space_hint = "Give trials of other search spaces as WarmStart(past=[...])."

    def __init__(
        self,
        past: Sequence[Any],
        space: Mapping[str, Any] | None = None,
        *,
        method: str = "copula",
        guard: bool = True,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        require_sklearn()
        is_list = isinstance(past, list | tuple) and len(past) > 0
        hint = "A single experiment is a list of one."
        check(is_list, "past", "a list of at least one experiment", past, hint)
        check(method == "copula", "method", "'copula'", method)
        check(isinstance(guard, bool), "guard", "True or False", guard)
        self.method = method
        self.guard = guard
        #: The earlier experiments; a path with its metric until it is read.
        self._past = [_given(one, f"past[{index}]") for index, one in enumerate(past)]
        self._own = OwnTrials()
        #: The arguments of `CopulaPrior`, from all full trials.
        self._evidence: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]] | None = None
        #: The regression, which is fitted before the first suggestion and is no state.
        self._prior: CopulaPrior | None = None
        super().__init__(
            space,
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=seed,
            max_concurrent=max_concurrent,
        )

    def read_past(self, read: Callable[[str], Any]) -> None:
        """Read the earlier experiments that were given by their paths.

        Parameters
        ----------
        read : callable
            Returns the experiment at a path or URL, as one of the objects that `past` may hold.
        """
        self._past = [one if isinstance(one, PastExperiment) else _read(read, *one) for one in self._past]

    def _start(self, seed: SeedSequence | None) -> None:
        self._take_past()
        super()._start(seed)

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        super()._set_space(space, name)
        self._kernel = KernelFeatures(self._flat.parameters)

    def _take_past(self) -> None:
        """Make a table of the full trials; raise errors of `past` before a trial runs."""
        configs: list[Mapping[str, Any]] = []
        scores, size = [], 0
        for one in self._past:
            hint = "A Tuner reads paths. Without one, give ExperimentAnalysis(path)."
            check(isinstance(one, PastExperiment), "past", "read before suggest()", one, hint)
            assert isinstance(one, PastExperiment)
            found, losses = one.full_trials(str(self.metric), str(self.mode))
            configs += found
            scores.append(normal_scores(losses))
            size += len(one.trials)
        self._features = ConfigFeatures(self._axes, configs)
        table = self._features.table(configs)
        rule = "experiments with at least one parameter of the search space"
        check(table.shape[1] > 0, "past", rule, sorted(configs[0]))
        evidence = table, np.concatenate(scores), self._features.is_category
        if self._evidence is None or not all(map(_equal, evidence, self._evidence)):
            # A second experiment with the same searcher mostly has the same space.
            self._evidence, self._prior = evidence, None
        left_out = f"; trials left out: {size - len(configs)}" if size > len(configs) else ""
        count = len(self._past)
        logger.info(
            "learning from %d full trials of %d %s%s",
            len(configs),
            count,
            plural("experiment", count),
            left_out,
        )

    def _fitted_prior(self) -> CopulaPrior:
        if self._prior is None:
            assert self._evidence is not None
            self._prior = CopulaPrior(*self._evidence)
        return self._prior

    def _opened(self, number: int, config: Mapping[str, Any]) -> tuple[int, Point] | None:
        point = self._point(config)
        return None if point is None else (number, point)

    def _propose(self, rng: Generator) -> dict[str, Any]:
        """Return the best of some random configurations."""
        points = self._kernel.without_inactive(random_points(self._cube.options, _CANDIDATES, rng))
        configs = self._configs(points)
        prior = self._fitted_prior()
        draws = prior.predict(self._features.table(configs))
        if self.guard and len(self._own) >= LEAST_OWN_TRIALS:
            weight, process = self._own_process(prior)
            draws = weight * draws + process.draw(self._kernel.vectors(points), np.zeros(len(points)), rng)
        else:
            draws += prior.deviation * rng.standard_normal(len(draws))
        return self._variants.fill_in(configs[int(np.argmin(draws))], rng)

    def _own_process(self, prior: CopulaPrior) -> tuple[float, ResourceGP]:
        """Return the weight of the prior, and a process of what it does not explain."""
        points, scores = np.array(self._own.points, dtype=float), self._own.scores()
        expected = prior.predict(self._features.table(self._configs(points)))
        weight = prior_weight(expected, scores)
        vectors = self._kernel.vectors(points)
        return weight, fitted_process(vectors, self._kernel.owners, scores - weight * expected)

    def _configs(self, points: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Return a value for each path of the space; NaN in a point is a missing parameter."""
        return [self._flat.point(self._cube.values(row)) for row in np.nan_to_num(points).tolist()]

    def _fail(self, trial_id: str, opened: tuple[int, Point] | None) -> None:
        if opened is not None:
            self._own.add(*opened, loss=inf, length=inf)

    def _finish(self, trial_id: str, opened: tuple[int, Point] | None, result: Mapping[str, Any]) -> None:
        if opened is not None:
            is_cut = bool(result.get(STOPPED_EARLY))
            length = (number(lookup(result, "training_iteration")) or 0.0) if is_cut else inf
            self._own.add(*opened, loss=self._loss(lookup(result, str(self.metric))), length=length)

    def _learn_at(self, point: Point, evaluated: EvaluatedPoint) -> None:
        loss = inf if evaluated.error else self._loss(evaluated.value)
        length = float(len(evaluated.intermediate_values)) if evaluated.pruned else inf
        self._own.add_evaluated(point, loss=loss, length=length)

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished and the ended trials, without the earlier experiments."""
        opened = {name: None if one is None else list(one) for name, one in self._open.items()}
        return {**super().state_dict(), "open": opened, "own": self._own.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._own.load_state_dict(state["own"])


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _read(read: Callable[[str], Any], path: str, metric: str | None) -> PastExperiment:
    return PastExperiment.of(read(path), without_passwords(path), metric)


def _given(past: Any, name: str) -> PastExperiment | tuple[str, str | None]:
    """Return the plain data of an earlier experiment, or its path with the metric's name there."""
    metric = None
    if isinstance(past, tuple) and len(past) == 2 and isinstance(past[1], str):
        past, metric = past
    if isinstance(past, str) or hasattr(past, "__fspath__"):
        return str(past), metric
    return PastExperiment.of(past, name, metric)


def fitted_process(
    vectors: NDArray[np.float64], owners: NDArray[np.int64], residuals: NDArray[np.float64]
) -> ResourceGP:
    """Return a Gaussian process of what the weighted prior does not explain.

    Parameters
    ----------
    vectors : ndarray of shape (n, f)
        The configurations of ended trials, as from `KernelFeatures`.
    owners : ndarray of shape (f,)
        The parameter of each column.
    residuals : ndarray of shape (n,)
        The trials' normal scores minus what the weighted prior expects.

    Returns
    -------
    ResourceGP
        The process, all of whose data have the resource 0.
    """
    # Of many trials a part that is even in rank, with the best and the worst one.
    order = np.argsort(residuals, kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, _MOST_TRIALS).round().astype(int))]
    vectors, residuals = vectors[rows], residuals[rows]
    full = np.zeros(len(rows))
    # From a fixed start, so that the fit depends on nothing but the data.
    start = prior_mean(int(owners[-1]) + 1)
    theta = fit_hyperparameters(start, vectors, owners, full, residuals)
    return ResourceGP(theta, owners, vectors, full, residuals)


def prior_weight(expected: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """Return the weight of the prior, from how it orders pairs of ended trials.

    Parameters
    ----------
    expected : ndarray of shape (n,)
        The scores that the prior expects.
    scores : ndarray of shape (n,)
        The trials' own scores.

    Returns
    -------
    float
        From -1 to 1. Negative if the prior orders more pairs wrongly than correctly: then what was
        good earlier is bad now, which is worth as much to know.

    Notes
    -----
    A pair counts the more, the further apart the prior expects its trials. With the mean size d of
    these differences, S is the sum of ``|difference| / d`` over the pairs in the right order, minus
    that over the pairs in the wrong order; P is the number of all pairs. The weight is
    ``(S + 6 t) / (P + 6) / t``, cut to [-1, 1], with t = 0.4. That is Kendall's tau divided by t,
    the tau of a prior that is as good as usual, after 6 pairs in which it was so: as many as 4
    trials have.

    Examples
    --------
    >>> own = np.array([-1.0, 0.0, 1.0, 2.0, 3.0])
    >>> [round(prior_weight(prior, own), 3) for prior in (own, -own, 0 * own)]
    [1.0, -1.0, 0.375]
    """
    one, other = np.triu_indices(len(scores), 1)
    differences = expected[one] - expected[other]
    size = float(np.abs(differences).mean())
    agreement = (differences * np.sign(scores[one] - scores[other])).sum() / size if size else 0.0
    skill = (agreement + _PAIRS * _USUAL_TAU) / (len(one) + _PAIRS)
    return float(np.clip(skill / _USUAL_TAU, -1, 1))
