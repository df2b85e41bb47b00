"""Suggestions by Ax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from dasktune.errors import check
from dasktune.search.ask_tell import AskTellSearch
from dasktune.search.ax.ax_client import AxClient
from dasktune.search.ax.ax_setup import AxProblem, UserClient, check_strategy, require_ax
from dasktune.search.ax.ax_spaces import AxDomainSpace, AxNativeSpace, AxSpace, native_configs
from dasktune.space import Domain
from dasktune.trial.metrics import Metric, Mode, Modes, lookup, number

__all__ = ["AxSearch"]


class AxSearch(AskTellSearch):
    """Suggest what Ax proposes: Sobol's points first, then Bayesian optimisation with BoTorch.

    It needs Ax, which needs PyTorch: ``pip install dasktune[ax]``.

    Parameters
    ----------
    space : mapping or sequence, optional
        What to search, in place of ``param_space``: a dict of dasktune's domains; or a list of
        parameters for Ax, be it configs of ``ax.api.configs``, or dicts as
        ``{"name": "lr", "type": "range", "bounds": [1e-4, 1.0], "log_scale": True}``, where ``/``
        in a name is a level of the configuration.
    metric : str or list of str, optional
        What is to be optimised; a list for several goals at once. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Which way it is better; a list, one for each, if `metric` is one. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested first; what they leave open is drawn at
        random. In a space of Ax's own, values by name, of which Ax chooses those that are left
        open.
    parameter_constraints : sequence of str, optional
        Linear constraints on parameters, as ``"x1 + 2 * x2 <= 1.5"``.
    outcome_constraints : sequence of str, optional
        Linear constraints on metrics that are not optimised, as ``"latency <= 0.5"``. With several
        goals, one on a goal says where it begins to be of interest.
    ax_client : ax.api.client.Client, optional
        A client of yours, which is copied and not changed; :attr:`client` is the copy. What it
        says, its experiment, its optimization and its generation strategy, must not be said again.
    seed : int, optional
        The source of all randomness; by default that of `ax_client`, or the experiment's.
    **ax_kwargs
        What ``ax.api.client.Client.configure_generation_strategy`` takes, as
        ``initialization_budget=10``.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or is not understood by Ax, or the space has a grid, a
        domain without bounds, or nothing to be searched.
    ImportError
        If Ax is not installed.

    Notes
    -----
    A choice may hold domains of its own, of which Ax knows that they depend on it. Ax knows which
    trials run and which failed. One without a finite value of a metric that is constrained has
    failed. The search has finished when Ax finds no point that was not tried.

    A restore asks Ax again for all points, which takes as long as before.

    References
    ----------
    .. [1] Olson et al., "Ax: A Platform for Adaptive Experimentation", AutoML 2025.

    Examples
    --------
    >>> from dasktune.search import AxSearch
    >>> search = AxSearch(initialization_budget=10)  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0917 - Ray Tune has these arguments
        self,
        space: Mapping[str, Any] | Sequence[Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,
        *,
        seed: int | None = None,
        **ax_kwargs: Any,
    ) -> None:
        require_ax()
        check_strategy(ax_kwargs)
        given = None if ax_client is None else UserClient(ax_client)
        problem = AxProblem(
            given=given,
            parameter_constraints=_texts("parameter_constraints", parameter_constraints),
            outcome_constraints=_texts("outcome_constraints", outcome_constraints),
            strategy=ax_kwargs,
        )
        if given is not None:
            _check_no_duplicates(problem, given, space, metric, mode)
            metric, mode = _goals_of(given, metric, mode)
        has_space = given is not None and given.names is not None
        is_native = has_space or isinstance(space, list | tuple)
        configs = native_configs(space) if isinstance(space, list | tuple) else []
        presets = points_to_evaluate if is_native else None

        def make(domains: dict[str, Domain], entropy: int) -> AxClient:
            names = (given and given.names) or [one.name for one in configs]
            searched: AxSpace = AxNativeSpace(configs, names) if is_native else AxDomainSpace(domains)
            modes = self.mode if isinstance(self.mode, list) else [self.mode]
            goals = {name: _known(mode) for name, mode in zip(self._names, modes, strict=True)}
            client = problem.client(searched.configs(), entropy, goals)
            return AxClient(client, searched, goals, presets or [])

        super().__init__(
            make,
            space={} if is_native else space,  # type: ignore[arg-type]
            metric=metric,
            mode=mode,
            points_to_evaluate=None if is_native else points_to_evaluate,
            seed=seed,
        )

    @property
    def client(self) -> Any:
        """The client of Ax, to be looked at; None before the search has begun."""
        return None if self._optimizer is None else self._ax.client

    @property
    def _ax(self) -> AxClient:
        optimizer = self._require_optimizer()
        assert isinstance(optimizer, AxClient)
        return optimizer

    def _result_loss(self, result: Mapping[str, Any]) -> float | list[float] | None:
        losses = super()._result_loss(result)
        if losses is None or not self._ax.outcomes:
            return losses
        values = [number(lookup(result, name)) for name in self._ax.outcomes]
        others = [value for value in values if value is not None and isfinite(value)]
        whole = len(others) == len(values)
        return [*(losses if isinstance(losses, list) else [losses]), *others] if whole else None


def _known(mode: Any) -> Mode:
    known: Mode = mode
    return known


def _texts(name: str, given: Sequence[str] | None) -> tuple[str, ...]:
    texts = [] if given is None else given
    valid = isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts)
    check(valid, name, "a list of texts, as ['x1 + 2 * x2 <= 1.5']", given)
    return tuple(texts)


def _check_no_duplicates(
    problem: AxProblem, given: UserClient, space: Any, metric: Metric, mode: Modes
) -> None:
    """Raise ConfigError if an argument says what the user's client says."""
    hint = "The client in ax_client says it already: say it in one place."
    said = {
        "space": (given.names is not None, space),
        "parameter_constraints": (given.names is not None, problem.parameter_constraints),
        "metric": (given.goals is not None, metric),
        "mode": (given.goals is not None, mode),
        "outcome_constraints": (given.goals is not None, problem.outcome_constraints),
        "**ax_kwargs": (given.has_strategy, problem.strategy),
    }
    for name, (already, value) in said.items():
        check(not already or not value, f"AxSearch({name}=...)", "left out", value, hint)


def _goals_of(given: UserClient, metric: Metric, mode: Modes) -> tuple[Metric, Modes]:
    """Return what the user's client optimises, or what was given if it does not say."""
    if given.goals is None:
        return metric, mode
    names, modes = list(given.goals), list(given.goals.values())
    return (names, modes) if len(names) > 1 else (names[0], modes[0])
