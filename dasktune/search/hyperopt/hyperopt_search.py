"""`HyperOptSearch`, the searcher with Hyperopt's tree of Parzen estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from dasktune.errors import check
from dasktune.search.ask_tell import AskTellSearch
from dasktune.search.hyperopt.hyperopt_spaces import (
    HyperoptDomainSpace,
    HyperoptNativeSpace,
    HyperoptSpace,
    is_native,
)
from dasktune.search.hyperopt.tpe import TPE, require_hyperopt
from dasktune.space import Domain
from dasktune.space.checks import as_float, as_int
from dasktune.trial.metrics import Metric, Modes


class HyperOptSearch(AskTellSearch):
    """Suggest configurations with Hyperopt's tree of Parzen estimators (TPE) [1]_.

    It needs Hyperopt: ``pip install hyperopt``.

    Parameters
    ----------
    space : mapping, optional
        The search space; by default the experiment's ``param_space``. It is a dict of dasktune's
        domains or of Hyperopt expressions, such as ``{"lr": hp.uniform("lr", 0, 1)}``.
    metric : str, optional
        The metric to optimise. By default the experiment's.
    mode : {"min", "max"}, optional
        Whether to minimise or maximise. By default the experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random. With Hyperopt expressions, these are complete dicts of values by label; the
        value of a choice is the index of its option.
    n_initial_points : int, default=20
        Number of random suggestions before TPE is used, at least 1.
    random_state_seed : int, optional
        The seed of all randomness; by default the experiment's.
    gamma : float, default=0.25
        Of n trials, the best ``gamma * sqrt(n)`` are modelled as good. In (0, 1].

    Raises
    ------
    ConfigError
        If an argument is invalid, or the space has a grid, a domain without bounds, or no domain.
    ImportError
        If Hyperopt is not installed.

    Notes
    -----
    A choice may contain further domains; TPE models them by the trials that use them. TPE treats
    running trials as bad ones, and ignores trials that failed or have no finite value. With
    Hyperopt expressions, the searcher learns only from its own suggestions.

    References
    ----------
    .. [1] Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011.

    Examples
    --------
    >>> from dasktune.space import uniform
    >>> search = HyperOptSearch({"x": uniform(0, 1)}, metric="loss", mode="min")
    """

    takes_several_metrics = False

    def __init__(  # noqa: PLR0917 - Ray Tune has these arguments
        self,
        space: Mapping[str, Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        require_hyperopt()
        initial = as_int("n_initial_points", n_initial_points, least=1)
        fraction = as_float("gamma", gamma)
        check(isfinite(fraction) and 0 < fraction <= 1, "gamma", "above 0, at most 1", gamma)
        native = HyperoptNativeSpace(space, points_to_evaluate or []) if is_native(space) else None
        super().__init__(
            partial(_tpe, native, initial, fraction),
            space=space if native is None else {},
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate if native is None else None,
            seed=random_state_seed,
        )


def _tpe(
    native: HyperoptNativeSpace | None, initial: int, gamma: float, domains: dict[str, Domain], seed: int
) -> TPE:
    # A function of the module, so that the searcher can be pickled.
    searched: HyperoptSpace = native or HyperoptDomainSpace(domains)
    return TPE(searched, seed=seed, n_initial_points=initial, gamma=gamma)
