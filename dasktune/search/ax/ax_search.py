"""`AxSearch`, the searcher with Ax."""

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


class AxSearch(AskTellSearch):
    """Suggest configurations with Ax [1]_: Sobol points first, then Bayesian optimisation.

    It needs Ax, which needs PyTorch: ``pip install 'ax-platform>=1.3'``.

    Parameters
    ----------
    space : mapping or sequence, optional
        The search space; by default the experiment's ``param_space``. It is either a dict of
        dasktune's domains; or a list of Ax parameters, each of which is a config of
        ``ax.api.configs`` or a dict such as
        ``{"name": "lr", "type": "range", "bounds": [1e-4, 1.0], "log_scale": True}``. A ``/`` in
        the name of an Ax parameter separates levels of the configuration.
    metric : str or list of str, optional
        The metric to optimise; a list for several objectives. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Whether to minimise or maximise; if `metric` is a list, a list with a mode for each metric.
        By default the experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before all others. Missing values are
        drawn at random. With a list of Ax parameters, these are values by parameter name, and Ax
        chooses missing ones.
    parameter_constraints : sequence of str, optional
        Linear constraints on parameters, such as ``"x1 + 2 * x2 <= 1.5"``.
    outcome_constraints : sequence of str, optional
        Linear constraints on metrics that are not optimised, such as ``"latency <= 0.5"``. With
        several objectives, a constraint on an objective is its threshold for the Pareto front.
    ax_client : ax.api.client.Client, optional
        Your own client, which is copied and not changed; :attr:`client` is the copy. Arguments for
        what the client already defines (experiment, objective, generation strategy) must be left
        out.
    seed : int, optional
        The seed of all randomness; by default that of `ax_client`, or the experiment's.
    **ax_kwargs
        Arguments of ``ax.api.client.Client.configure_generation_strategy``, such as
        ``initialization_budget=10``.

    Raises
    ------
    ConfigError
        If an argument is invalid, Ax rejects it, or the space has a grid, a domain without bounds,
        or no domain.
    ImportError
        If Ax is not installed.

    Notes
    -----
    A choice may contain further domains, which Ax treats as parameters that depend on the choice.
    Ax is informed of running and failed trials. A trial without a finite value of a constrained
    metric counts as failed. The search has finished when Ax finds no new point.

    Restoring an experiment requests all points from Ax again, which takes as long as before.

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
            names = (given and given.names) or [config.name for config in configs]
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
        """The Ax client, for inspection only; None before the search has begun."""
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
        finite = [value for value in values if value is not None and isfinite(value)]
        if len(finite) < len(values):
            return None
        return [*(losses if isinstance(losses, list) else [losses]), *finite]


def _known(mode: Any) -> Mode:
    known: Mode = mode
    return known


def _texts(name: str, given: Sequence[str] | None) -> tuple[str, ...]:
    texts = [] if given is None else given
    valid = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    check(valid, name, "a list of strings, such as ['x1 + 2 * x2 <= 1.5']", given)
    return tuple(texts)


def _check_no_duplicates(
    problem: AxProblem, given: UserClient, space: Any, metric: Metric, mode: Modes
) -> None:
    """Raise ConfigError if an argument sets what the user's client already defines."""
    hint = "The client in ax_client already defines it: set it in one place."
    defined = {
        "space": (given.names is not None, space),
        "parameter_constraints": (given.names is not None, problem.parameter_constraints),
        "metric": (given.goals is not None, metric),
        "mode": (given.goals is not None, mode),
        "outcome_constraints": (given.goals is not None, problem.outcome_constraints),
        "**ax_kwargs": (given.has_strategy, problem.strategy),
    }
    for name, (already, value) in defined.items():
        check(not already or not value, f"AxSearch({name}=...)", "left out", value, hint)


def _goals_of(given: UserClient, metric: Metric, mode: Modes) -> tuple[Metric, Modes]:
    """Return metric and mode of the user's client; the arguments if it has no objective."""
    if given.goals is None:
        return metric, mode
    names, modes = list(given.goals), list(given.goals.values())
    return (names, modes) if len(names) > 1 else (names[0], modes[0])
