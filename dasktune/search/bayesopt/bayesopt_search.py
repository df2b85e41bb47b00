"""Suggestions by the package bayesian-optimization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dasktune.errors import check
from dasktune.search.ask_tell import AskTellSearch
from dasktune.search.bayesopt.gaussian_process import (
    DuplicateRule,
    GaussianProcess,
    require_bayes_opt,
)
from dasktune.search.searcher import EvaluatedTrial
from dasktune.space import Domain, uniform
from dasktune.space.checks import as_float, as_int
from dasktune.trial.metrics import Metric, Modes

__all__ = ["BayesOptSearch"]

#: What weighs exploring against exploiting, by the names that users know.
_UTILITY: Final = {"kind": "ucb", "kappa": 2.576, "xi": 0.0}


class BayesOptSearch(AskTellSearch):
    """Suggest what a Gaussian process of the package bayesian-optimization proposes.

    It needs the package: ``pip install dasktune[bayesopt]``.

    Parameters
    ----------
    space : mapping, optional
        What to search, in place of ``param_space``: ranges, or pairs of bounds as
        ``{"lr": (0, 1)}``.
    metric : str, optional
        What is to be optimised. By default the experiment's.
    mode : {"min", "max"}, optional
        Which way it is better. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested first; what they leave open is drawn at
        random.
    utility_kwargs : mapping, optional
        ``kind``: "ucb", "ei" or "poi"; ``kappa`` (for "ucb") and ``xi`` (for the others), the
        larger the more is explored. By default "ucb" with ``kappa=2.576``.
    random_state : int, optional
        The source of all randomness; by default the experiment's.
    random_search_steps : int, default=10
        How many suggestions are random, before the process is asked.
    verbose : int, default=0
        Above 0, each proposal is logged at the level INFO, with what the process expects there.
    patience : int, default=5
        How many proposals in a row that were tried before end the search.
    skip_duplicate : bool, default=True
        Whether what was tried before is not suggested again.
    analysis : ResultGrid, optional
        An earlier experiment to learn from.
    repeat_float_precision : int, default=5
        To how many digits, of parameters scaled to [0, 1], two points are the same.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has a grid, a choice, a domain without bounds,
        or nothing to be searched.
    ImportError
        If the package is not installed.

    Notes
    -----
    Parameters are scaled to [0, 1], on their logarithms where they are so, and integers are
    rounded. To the process, points that run have come to the mean of all others, so that it does
    not propose the same again. It ignores trials that failed or have no finite value.

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
        analysis: Iterable[EvaluatedTrial] | None = None,
        repeat_float_precision: int = 5,
    ) -> None:
        require_bayes_opt()
        steps = as_int("random_search_steps", random_search_steps, least=1)
        tries = DuplicateRule(
            as_int("patience", patience, least=1) if skip_duplicate else 0,
            as_int("repeat_float_precision", repeat_float_precision, least=1),
        )
        utility = _utility(utility_kwargs)
        tells = as_int("verbose", verbose, least=0) > 0

        def make(domains: dict[str, Domain], seed: int) -> GaussianProcess:
            return GaussianProcess(
                domains,
                seed=seed,
                random_steps=steps,
                patience=tries,
                utility=utility,
                verbose=tells,
            )

        self._analysis = analysis
        super().__init__(
            make,
            space=_ranges(space) if isinstance(space, Mapping) else space,
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=random_state,
        )

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take what the constructor left open, and learn from the earlier experiment.

        Raises
        ------
        ConfigError
            As of every searcher of spaces.
        """
        taken = super().set_search_properties(metric, mode, config, **spec)
        if self._analysis is not None:
            self.add_evaluated_trials(self._analysis)
        return taken


def _ranges(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with domains in the place of pairs of bounds."""
    pairs = {key: isinstance(one, tuple) and len(one) == 2 for key, one in space.items()}
    return {key: uniform(*one) if pairs[key] else one for key, one in space.items()}


def _utility(given: Mapping[str, Any] | None) -> dict[str, Any]:
    told: object = {} if given is None else given
    valid = isinstance(told, Mapping) and told.keys() <= _UTILITY.keys()
    check(valid, "utility_kwargs", f"a dict with some of {list(_UTILITY)}", given)
    utility = {**_UTILITY, **(given or {})}
    kind = utility["kind"]
    check(kind in ("ucb", "ei", "poi"), "utility_kwargs['kind']", "'ucb', 'ei' or 'poi'", kind)
    for name in ("kappa", "xi"):
        value = as_float(f"utility_kwargs[{name!r}]", utility[name])
        check(value >= 0, f"utility_kwargs[{name!r}]", "at least 0", value)
    return utility
