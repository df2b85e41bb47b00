"""Creation and configuration of Ax clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.ax.ax_client import experiment_of
from dasktune.trial.metrics import Mode


def require_ax() -> None:
    """Raise ImportError if Ax is not installed; the message says how to install it."""
    from importlib.util import find_spec

    if find_spec("ax") is None:
        raise ImportError("AxSearch needs Ax 1.3 or later: pip install 'ax-platform>=1.3'")


def check_strategy(strategy: Mapping[str, Any]) -> None:
    """Raise ConfigError if a name is not an argument of Ax's generation strategy."""
    if not strategy:
        return
    from ax.api.client import Client

    known = list(signature(Client.configure_generation_strategy).parameters)[1:]
    unknown = [name for name in strategy if name not in known]
    hint = "Set other options of Ax in your own client: AxSearch(ax_client=...)."
    check(not unknown, "an argument of AxSearch", f"its own or one of {known}", unknown, hint)


class UserClient:
    """A copy of the Ax client that a user configured; the original is never changed.

    Parameters
    ----------
    client : ax.api.client.Client or ax.service.ax_client.AxClient
        The user's client.

    Attributes
    ----------
    seed : int or None
        The random seed of the client.
    goals : dict of str to {"min", "max"} or None
        The metrics that its experiment optimises, in order; None if it has no objective.
    names : list of str or None
        The names of its experiment's parameters; None if it has no experiment.
    has_strategy : bool
        Whether it has a generation strategy.

    Raises
    ------
    ConfigError
        If `client` is not a client of Ax.
    """

    def __init__(self, client: Any) -> None:
        from ax.api.client import Client
        from ax.service.ax_client import AxClient as OldClient

        rule = "a client of Ax, such as ax.api.client.Client()"
        check(isinstance(client, Client | OldClient), "ax_client", rule, client)
        is_new = isinstance(client, Client)
        experiment = client._maybe_experiment if is_new else client._experiment
        strategy = client._maybe_generation_strategy if is_new else client._generation_strategy
        #: The experiment and the strategy, copied together because they refer to each other.
        self._copied = deepcopy((experiment, strategy))
        self.seed: int | None = client._random_seed
        config = None if experiment is None else experiment.optimization_config
        self.goals: dict[str, Mode] | None = None if config is None else _goals(config)
        self.names = None if experiment is None else list(experiment.search_space.parameters)
        self.has_strategy = strategy is not None

    def copy(self, seed: int) -> Any:
        """Return a copy of the user's client; its seed is `seed` if the user set none."""
        from ax.api.client import Client

        client = Client(random_seed=seed if self.seed is None else self.seed)
        experiment, strategy = deepcopy(self._copied)
        if experiment is not None:
            client.set_experiment(experiment)
        if strategy is not None:
            client.set_generation_strategy(strategy)
        return client


def _goals(config: Any) -> dict[str, Mode]:
    names = config.objective.metric_names
    weights = [weight for _, weight in config.objective.metric_weights]
    return {name: "max" if weight > 0 else "min" for name, weight in zip(names, weights, strict=True)}


@dataclass(frozen=True, kw_only=True)
class AxProblem:
    """The arguments with which an Ax client is configured.

    Parameters
    ----------
    given : UserClient, optional
        The user's client. The experiment, objective and strategy that it has are not configured
        again.
    parameter_constraints, outcome_constraints : tuple of str, default=()
        Linear constraints on parameters and on metrics.
    strategy : mapping, default={}
        Arguments of ``Client.configure_generation_strategy``.
    """

    given: UserClient | None = None
    parameter_constraints: tuple[str, ...] = ()
    outcome_constraints: tuple[str, ...] = ()
    strategy: Mapping[str, Any] = field(default_factory=dict)

    def client(self, configs: Sequence[Any], seed: int, goals: Mapping[str, Mode]) -> Any:
        """Return a client that is ready to generate trials.

        Parameters
        ----------
        configs : sequence
            The configs of Ax's parameters.
        seed : int
            The seed of all randomness.
        goals : mapping of str to {"min", "max"}
            The metrics to optimise.

        Raises
        ------
        ConfigError
            If Ax rejects the space, the goals, a constraint or the strategy.
        """
        from ax.api.client import Client

        given = self.given
        client = Client(random_seed=seed) if given is None else given.copy(seed)
        try:
            if given is None or given.names is None:
                client.configure_experiment(
                    list(configs), parameter_constraints=list(self.parameter_constraints)
                )
            if given is None or given.goals is None:
                self._configure_objective(client, goals)
            if given is None or not given.has_strategy:
                self._configure_generation(client, seed)
        except Exception as error:  # Ax raises exceptions of many types
            rule = "accepted by Ax"
            raise ConfigError(f"the arguments of AxSearch must be {rule}, got {error}") from error
        return client

    def _configure_objective(self, client: Any, goals: Mapping[str, Mode]) -> None:
        objective = ", ".join(f"-{name}" if mode == "min" else name for name, mode in goals.items())
        relative = any("baseline" in constraint for constraint in self.outcome_constraints)
        if relative and experiment_of(client).status_quo is None:
            raise ValueError(
                "an outcome constraint relative to a baseline without a value; attach a baseline "
                "to your own client: AxSearch(ax_client=...)"
            )
        client.configure_optimization(objective, list(self.outcome_constraints) or None)

    def _configure_generation(self, client: Any, seed: int) -> None:
        client.configure_generation_strategy(
            **{
                "initialization_random_seed": seed,
                # Otherwise Ax raises if all initial points are suggested and too few have results.
                "allow_exceeding_initialization_budget": True,
                **self.strategy,
            }
        )
