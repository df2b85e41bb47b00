"""Suggestions by Hyperopt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

__all__ = ["HyperOptSearch"]


class HyperOptSearch(AskTellSearch):
    """Suggest what Hyperopt's tree of Parzen estimators proposes.

    It needs Hyperopt: ``pip install dasktune[hyperopt]``.

    Parameters
    ----------
    space : mapping, optional
        What to search, in place of ``param_space``: a dict of dasktune's domains, or one with
        Hyperopt's own expressions, as ``{"lr": hp.uniform("lr", 0, 1)}``.
    metric : str, optional
        What is to be optimised. By default the experiment's.
    mode : {"min", "max"}, optional
        Which way it is better. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested first; what they leave open is drawn at
        random. In a space of Hyperopt's own, values by label, of a choice the option's number.
    n_initial_points : int, default=20
        How many suggestions are random, before there is a model.
    random_state_seed : int, optional
        The source of all randomness; by default the experiment's.
    gamma : float, default=0.25
        How many of n trials count as good: ``gamma * sqrt(n)``. In (0, 1].

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has a grid, a domain without bounds, or nothing
        to be searched.
    ImportError
        If Hyperopt is not installed.

    Notes
    -----
    A choice may contain further domains; Hyperopt learns about them from the trials that use them.
    Running trials count as poor ones, as always with Hyperopt; trials that failed or have no
    finite value are ignored. In a native Hyperopt space it learns from its own suggestions only.

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
        share = as_float("gamma", gamma)
        check(isfinite(share) and 0 < share <= 1, "gamma", "above 0, at most 1", gamma)
        native = HyperoptNativeSpace(space, points_to_evaluate or []) if is_native(space) else None

        def make(domains: dict[str, Domain], seed: int) -> TPE:
            searched: HyperoptSpace = native or HyperoptDomainSpace(domains)
            return TPE(searched, seed=seed, n_initial_points=initial, gamma=share)

        super().__init__(
            make,
            space=space if native is None else {},
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate if native is None else None,
            seed=random_state_seed,
        )
