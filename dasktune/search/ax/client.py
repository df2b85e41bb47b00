"""A client of Ax as an optimiser that is asked and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.errors import ConfigError
from dasktune.search.ask_tell import AskTell
from dasktune.search.flat_space import FlatParameter, FlatSpace
from dasktune.space import Domain

__all__ = ["AxClient"]


class AxClient(AskTell):
    """Its trials are found again by their points.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.
    seed : int
        The source of all randomness.
    goals : int
        How many metrics there are.
    constraints : sequence of str
        Linear ones of parameters.
    **strategy
        How Ax generates points.

    Raises
    ------
    ConfigError
        If there is a domain without bounds, nothing to be searched, or what Ax cannot understand.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        seed: int,
        goals: int,
        *,
        constraints: Sequence[str] = (),
        **strategy: Any,
    ) -> None:
        from ax.api.client import Client

        self._flat = FlatSpace(domains, "Ax")
        self._goals = [f"loss{number}" for number in range(goals)]
        #: The number, in Ax, and the point of each trial that runs.
        self._running: list[tuple[int, Mapping[str, Any]]] = []
        self._client = Client(random_seed=seed)
        try:
            self._client.configure_experiment(
                [self._config(one) for one in self._flat.parameters],
                parameter_constraints=list(constraints),
            )
            self._client.configure_optimization(", ".join(f"-{goal}" for goal in self._goals))
            self._client.configure_generation_strategy(
                **{
                    "initialization_random_seed": seed,
                    # Else it raises where more are asked for than have ended.
                    "allow_exceeding_initialization_budget": True,
                    **strategy,
                }
            )
        except Exception as error:  # it has many exceptions of its own
            rule = "what Ax understands"
            raise ConfigError(f"the arguments of AxSearch must be {rule}, got {error}") from error

    def _config(self, one: FlatParameter) -> Any:
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        if not one.is_choice:
            kind = "int" if one.is_whole else "float"
            scaling = "log" if one.log else "linear"
            return RangeParameterConfig(one.name, (one.low, one.high), kind, scaling=scaling)
        options = list(range(int(one.high) + 1))
        below = {
            option: [
                other.name
                for other in self._flat.parameters
                if other.condition == (one.name, option)
            ]
            for option in options
        }
        dependent = {option: names for option, names in below.items() if names}
        return ChoiceParameterConfig(
            one.name, options, "int", is_ordered=False, dependent_parameters=dependent or None
        )

    def ask(self) -> dict[str, Any] | None:
        """Return what Ax proposes; None if it waits for results."""
        proposed = self._client.get_next_trials(max_trials=1)
        for index, values in proposed.items():
            point = self._flat.point(values)
            self._running.append((index, point))
            return point
        return None

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Tell Ax what a point came to, be it an own one or one from elsewhere."""
        index = self._index(params)
        if index is None:
            return
        if loss is None:
            self._client.mark_trial_failed(index)
        else:
            losses = loss if isinstance(loss, list) else [loss]
            self._client.complete_trial(index, dict(zip(self._goals, losses, strict=True)))

    def _index(self, params: Mapping[str, Any]) -> int | None:
        """Return the number of a point's trial, a new one if it has none; None if it can't."""
        for place, (index, point) in enumerate(self._running):
            if point is params or point == params:
                del self._running[place]
                return index
        values = self._flat.values(params)
        if values is None:
            return None
        index = self._client.attach_trial(values)
        return int(index)
