"""Conversion of search spaces to Hyperopt expressions, and of their values to configurations."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.flat_space import FlatParameter, FlatSpace
from dasktune.space import Domain


class HyperoptSpace(ABC):
    """A Hyperopt expression, and the conversion between its values and points of the search.

    Attributes
    ----------
    expression : object
        The expression that Hyperopt searches.
    points : sequence of mapping
        Values by label that are suggested first.
    """

    expression: Any
    points: Sequence[Mapping[str, float]] = ()

    @abstractmethod
    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Convert values by label to a point."""

    @abstractmethod
    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Convert a point to values by label; None if they are not known."""


class HyperoptDomainSpace(HyperoptSpace):
    """Domains as an expression; a choice is ``hp.choice`` of its options' inner parameters.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.

    Raises
    ------
    ConfigError
        If a domain has no bounds, or no domain has more than one value.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._flat = FlatSpace(domains, "Hyperopt")
        self.expression = self._under(None)

    def _under(self, condition: tuple[str, int] | None) -> dict[str, Any]:
        return {
            parameter.name: self._expression(parameter)
            for parameter in self._flat.parameters
            if parameter.condition == condition
        }

    def _expression(self, parameter: FlatParameter) -> Any:
        from hyperopt import hp

        if parameter.is_choice:
            options = range(int(parameter.high) + 1)
            return hp.choice(parameter.name, [self._under((parameter.name, option)) for option in options])
        # Hyperopt draws a float and rounds it to an integer. Half a unit beyond each bound gives
        # the first and the last integer the same weight as the others.
        half = 0.5 * parameter.is_whole
        low, high = parameter.low - half, parameter.high + half
        bounds = (log(low), log(high)) if parameter.log else (low, high)
        if parameter.is_whole:
            return (hp.qloguniform if parameter.log else hp.quniform)(parameter.name, *bounds, 1)
        return (hp.loguniform if parameter.log else hp.uniform)(parameter.name, *bounds)

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Convert values by label to values by path."""
        return self._flat.point(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Convert values by path to values by label; None if not in the space."""
        return self._flat.values(point)


class HyperoptNativeSpace(HyperoptSpace):
    """A Hyperopt expression that a user wrote.

    The values by label cannot be computed from a configuration, so they are stored for each
    configuration that was suggested.

    Parameters
    ----------
    expression : object
        The user's expression.
    points : sequence of mapping
        Values by label that are suggested first.

    Raises
    ------
    ConfigError
        If the expression has no parameter, or a point has an unknown label or lacks one.
    """

    def __init__(self, expression: Any, points: Sequence[Mapping[str, float]]) -> None:
        from hyperopt import space_eval
        from hyperopt.base import Domain

        self.expression = expression
        labels = list(Domain(None, expression, pass_expr_memo_ctrl=False).params)
        check(bool(labels), "space", "an expression with at least one parameter", expression)
        for point in points:
            given: object = point
            known = isinstance(given, Mapping) and given.keys() <= {*labels}
            check(known, "points_to_evaluate", f"dicts of values by label, of {labels}", point)
            try:
                space_eval(expression, dict(point))
            except Exception as error:
                rule = "dicts with values for all labels that the expression needs"
                raise ConfigError(f"points_to_evaluate must be {rule}, got {point!r}") from error
        self.points = points
        #: Values by label of each configuration, as JSON.
        self._known: dict[str, dict[str, float]] = {}

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Convert values by label to the configuration, and store them for it."""
        from hyperopt import space_eval

        point: dict[str, Any] = space_eval(self.expression, dict(values))
        self._known[_json_key(point)] = dict(values)
        return point

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the stored values by label; None if the configuration was not suggested."""
        return self._known.get(_json_key(point))


def is_native(space: object) -> bool:
    """Return whether a search space contains a Hyperopt expression."""
    from hyperopt.pyll import Apply

    if isinstance(space, Mapping):
        return any(map(is_native, space.values()))
    if isinstance(space, list | tuple):
        return any(map(is_native, space))
    return isinstance(space, Apply)


def _json_key(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True, default=repr)
