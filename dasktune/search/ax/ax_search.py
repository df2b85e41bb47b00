"""Suggestions by Ax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dasktune.search.ask_tell import AskTellSearch
from dasktune.search.ax.client import AxClient
from dasktune.space import Domain
from dasktune.trial.metrics import Metric, Modes

__all__ = ["AxSearch"]


class AxSearch(AskTellSearch):
    """Suggest what Ax proposes: Sobol's points first, then Bayesian optimisation with BoTorch.

    It needs Ax, which needs PyTorch: ``pip install dasktune[ax]``.

    Parameters
    ----------
    space : mapping, optional
        What to search; by default the experiment's ``param_space``.
    metric : str or list of str, optional
        What is to be optimised; a list for several goals at once. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Which way it is better; a list, one for each, if `metric` is one. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested first; what they leave open is drawn at
        random.
    parameter_constraints : sequence of str, optional
        Linear constraints on parameters at the top of the space, as ``"x1 + 2 * x2 <= 1.5"``.
    seed : int, optional
        The source of all randomness; by default the experiment's.
    **ax_kwargs
        What ``ax.api.client.Client.configure_generation_strategy`` takes, as
        ``initialization_budget=10``.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has a grid, a domain without bounds, or nothing
        to be searched.
    ImportError
        If Ax is not installed.

    Notes
    -----
    A choice may hold domains of its own, of which Ax knows that they depend on it. Ax knows which
    trials run and which failed. When an experiment is restored Ax is asked everything anew, which
    takes as long as it took.

    References
    ----------
    .. [1] Olson et al., "Ax: A Platform for Adaptive Experimentation", AutoML 2025.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        *,
        seed: int | None = None,
        **ax_kwargs: Any,
    ) -> None:
        if find_spec("ax") is None:
            raise ImportError("AxSearch needs Ax 1.3 or later: pip install dasktune[ax]")

        def make(domains: dict[str, Domain], entropy: int) -> AxClient:
            goals = len(self._names)
            constraints = list(parameter_constraints or [])
            return AxClient(domains, entropy, goals, constraints=constraints, **ax_kwargs)

        super().__init__(
            make,
            space=space,
            metric=metric,
            mode=mode,
            points_to_evaluate=points_to_evaluate,
            seed=seed,
        )
