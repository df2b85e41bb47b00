"""`BayesOptSearch`, the searcher with the package bayesian-optimization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.search.ask_tell import AskTellSearch
from dasktune.search.bayesopt.gaussian_process import (
    DuplicateRule,
    GaussianProcess,
    require_bayes_opt,
)
from dasktune.search.searcher import EvaluatedTrial, EvaluatedTrials
from dasktune.space import Domain, uniform
from dasktune.space.checks import as_float, as_int
from dasktune.trial.metrics import Metric, Modes

#: The default acquisition function and its parameters, by the names in `utility_kwargs`.
_UTILITY: Final = {"kind": "ucb", "kappa": 2.576, "xi": 0.0}


class BayesOptSearch(AskTellSearch):
    """Suggest configurations by Bayesian optimisation with a Gaussian process [1]_.

    It needs the package bayesian-optimization: ``pip install 'bayesian-optimization>=3'``.

    Parameters
    ----------
    space : mapping, optional
        The search space, which has only ranges; by default the experiment's ``param_space``. A pair
        of bounds, as in ``{"lr": (0, 1)}``, is a uniform range of floats.
    metric : str, optional
        The metric to optimise. By default the experiment's.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise. By default the experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random.
    utility_kwargs : mapping, optional
        The acquisition function: ``kind`` is "ucb" (upper confidence bound), "ei" (expected
        improvement) or "poi" (probability of improvement). Larger values of ``kappa`` (for "ucb")
        and ``xi`` (for the others), at least 0, favour exploration. By default
        ``{"kind": "ucb", "kappa": 2.576, "xi": 0.0}``.
    random_state : int, optional
        The seed of all randomness; by default the experiment's.
    random_search_steps : int, default=10
        Number of random suggestions before the Gaussian process is used, at least 1.
    verbose : int, default=0
        Above 0, each suggestion is logged at level INFO, with its predicted mean and deviation.
    patience : int, default=5
        Number of duplicates in a row after which the search ends, at least 1. While trials are
        running, the searcher waits for their results instead.
    skip_duplicate : bool, default=True
        Whether points that were suggested before are skipped.
    analysis : ResultGrid, optional
        An earlier experiment to learn from.
    repeat_float_precision : int, default=5
        Points are duplicates if their parameters, scaled to [0, 1], agree to this number of
        decimals.

    Raises
    ------
    ConfigError
        If an argument is invalid, or the space has a grid, a choice, a domain without bounds, or no
        domain.
    ImportError
        If the package is not installed.

    Notes
    -----
    Ranges are scaled to [0, 1], log ranges by their logarithms; integers are rounded. The Gaussian
    process is fitted with running trials at the mean of all known values, so that it does not
    suggest their points again. It ignores trials that failed or have no finite value.

    References
    ----------
    .. [1] Snoek et al., "Practical Bayesian Optimization of Machine Learning Algorithms",
       NeurIPS 2012, arXiv:1206.2944.

    Examples
    --------
    >>> search = BayesOptSearch({"x": (0, 1)}, metric="loss", mode="min")
    """

    takes_several_metrics = False

    def __init__(  # noqa: PLR0917 - Ray Tune has these arguments
        self,
        space: Mapping[str, Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int | None = None,
        random_search_steps: int = 10,
        verbose: int = 0,
        *,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: EvaluatedTrials | Iterable[EvaluatedTrial] | None = None,
        repeat_float_precision: int = 5,
    ) -> None:
        require_bayes_opt()
        steps = as_int("random_search_steps", random_search_steps, least=1)
        duplicate_rule = DuplicateRule(
            as_int("patience", patience, least=1) if skip_duplicate else 0,
            as_int("repeat_float_precision", repeat_float_precision, least=1),
        )
        utility = _utility(utility_kwargs)
        options = {
            "random_steps": steps,
            "patience": duplicate_rule,
            "utility": utility,
            "verbose": as_int("verbose", verbose, least=0) > 0,
        }
        self._analysis = analysis
        super().__init__(
            partial(_gaussian_process, options),
            space=_ranges(space) if isinstance(space, Mapping) else space,
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=random_state,
        )

    def _start(self, seed: SeedSequence | None) -> None:
        super()._start(seed)
        if self._analysis is not None:
            self.add_evaluated_trials(self._analysis)


def _gaussian_process(options: Mapping[str, Any], domains: dict[str, Domain], seed: int) -> GaussianProcess:
    # A function of the module, so that the searcher can be pickled.
    return GaussianProcess(domains, seed=seed, **options)


def _ranges(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space with pairs of bounds replaced by uniform domains."""
    is_pair = {key: isinstance(value, tuple) and len(value) == 2 for key, value in space.items()}
    return {key: uniform(*value) if is_pair[key] else value for key, value in space.items()}


def _utility(given: Mapping[str, Any] | None) -> dict[str, Any]:
    options: object = {} if given is None else given
    valid = isinstance(options, Mapping) and options.keys() <= _UTILITY.keys()
    check(valid, "utility_kwargs", f"a dict with some of {list(_UTILITY)}", given)
    utility = {**_UTILITY, **(given or {})}
    kind = utility["kind"]
    check(kind in ("ucb", "ei", "poi"), "utility_kwargs['kind']", "'ucb', 'ei' or 'poi'", kind)
    for name in ("kappa", "xi"):
        value = as_float(f"utility_kwargs[{name!r}]", utility[name])
        check(value >= 0, f"utility_kwargs[{name!r}]", "at least 0", value)
    return utility
