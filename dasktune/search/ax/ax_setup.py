"""Clients of Ax: how they are made, and what one that a user made says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.trial.metrics import Mode

__all__ = ["AxProblem", "UserClient", "check_strategy", "require_ax"]


def require_ax() -> None:
    """Raise ImportError if Ax is not installed; the message says how to."""
    from importlib.util import find_spec

    if find_spec("ax") is None:
        raise ImportError("AxSearch needs Ax 1.3 or later: pip install dasktune[ax]")


def check_strategy(strategy: Mapping[str, Any]) -> None:
    """Raise ConfigError if Ax does not know an argument of how points are generated."""
    if not strategy:
        return
    from ax.api.client import Client

    known = list(signature(Client.configure_generation_strategy).parameters)[1:]
    unknown = [name for name in strategy if name not in known]
    hint = "Anything else of Ax is set in a client of yours: AxSearch(ax_client=...)."
    check(not unknown, "an argument of AxSearch", f"its own or one of {known}", unknown, hint)


class UserClient:
    """A client of Ax that a user made, which is copied and never changed.

    Parameters
    ----------
    client : ax.api.client.Client or ax.service.ax_client.AxClient
        The user's.

    Attributes
    ----------
    goals : dict of str to {"min", "max"} or None
        What its experiment optimises, in order; None if it does not say.
    names : list of str or None
        The parameters of its experiment; None if it has none.
    has_strategy : bool
        Whether it says how points are generated.

    Raises
    ------
    ConfigError
        If it is something else.
    """

    def __init__(self, client: Any) -> None:
        from ax.api.client import Client
        from ax.service.ax_client import AxClient as OldClient

        rule = "a client of Ax, as ax.api.client.Client()"
        check(isinstance(client, Client | OldClient), "ax_client", rule, client)
        is_new = isinstance(client, Client)
        experiment = client._maybe_experiment if is_new else client._experiment
        strategy = client._maybe_generation_strategy if is_new else client._generation_strategy
        #: Copied together, as the one knows the other.
        self._copied = deepcopy((experiment, strategy))
        self.seed: int | None = client._random_seed
        config = None if experiment is None else experiment.optimization_config
        self.goals: dict[str, Mode] | None = None if config is None else _goals(config)
        self.names = None if experiment is None else list(experiment.search_space.parameters)
        self.has_strategy = strategy is not None

    def copy(self, seed: int) -> Any:
        """Return a client that continues from the state of the user's one."""
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
    """What a client of Ax is to search, and how.

    Parameters
    ----------
    given : UserClient, optional
        The user's own. What it says is not said again.
    parameter_constraints, outcome_constraints : tuple of str
        Linear ones, of parameters and of metrics.
    strategy : mapping
        What ``Client.configure_generation_strategy`` takes.
    """

    given: UserClient | None = None
    parameter_constraints: tuple[str, ...] = ()
    outcome_constraints: tuple[str, ...] = ()
    strategy: Mapping[str, Any] = field(default_factory=dict)

    def client(self, configs: Sequence[Any], seed: int, goals: Mapping[str, Mode]) -> Any:
        """Return a client that can be asked.

        Raises
        ------
        ConfigError
            If Ax does not understand the space, the goals, a constraint or the strategy.
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
        except Exception as error:  # it has many exceptions of its own
            rule = "what Ax understands"
            raise ConfigError(f"the arguments of AxSearch must be {rule}, got {error}") from error
        return client

    def _configure_objective(self, client: Any, goals: Mapping[str, Mode]) -> None:
        objective = ", ".join(f"-{name}" if mode == "min" else name for name, mode in goals.items())
        relative = any("baseline" in one for one in self.outcome_constraints)
        if relative and client._experiment.status_quo is None:
            raise ValueError(
                "an outcome constraint relative to a baseline without a value; attach one to a "
                "client of yours: AxSearch(ax_client=...)"
            )
        client.configure_optimization(objective, list(self.outcome_constraints) or None)

    def _configure_generation(self, client: Any, seed: int) -> None:
        client.configure_generation_strategy(
            **{
                "initialization_random_seed": seed,
                # Else it raises where more are asked for than have ended.
                "allow_exceeding_initialization_budget": True,
                **self.strategy,
            }
        )
