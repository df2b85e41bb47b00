"""Search spaces as Hyperopt's expressions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.flat_space import FlatParameter, FlatSpace
from dasktune.space import Domain

__all__ = ["HyperoptDomainSpace", "HyperoptNativeSpace", "HyperoptSpace", "is_native"]


class HyperoptSpace(ABC):
    """An expression, and what its values stand for.

    Attributes
    ----------
    expression : object
        What Hyperopt searches.
    points : sequence of mapping
        Values by label to begin with.
    """

    expression: Any
    points: Sequence[Mapping[str, float]] = ()

    @abstractmethod
    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return the point of the search that values by label make."""

    @abstractmethod
    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the values by label of a point, None if they are not known."""


class HyperoptDomainSpace(HyperoptSpace):
    """Domains as an expression: conditional ones as choices of Hyperopt's.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._flat = FlatSpace(domains, "Hyperopt")
        self.expression = self._under(None)

    def _under(self, condition: tuple[str, int] | None) -> dict[str, Any]:
        return {
            one.name: self._expression(one) for one in self._flat.parameters if one.condition == condition
        }

    def _expression(self, one: FlatParameter) -> Any:
        from hyperopt import hp

        if one.is_choice:
            options = range(int(one.high) + 1)
            return hp.choice(one.name, [self._under((one.name, number)) for number in options])
        # An integer is rounded to, the outermost ones from as far as all others.
        half = 0.5 * one.is_whole
        low, high = one.low - half, one.high + half
        bounds = (log(low), log(high)) if one.log else (low, high)
        if one.is_whole:
            return (hp.qloguniform if one.log else hp.quniform)(one.name, *bounds, 1)
        return (hp.loguniform if one.log else hp.uniform)(one.name, *bounds)

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return values by path."""
        return self._flat.point(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the values by label, None if it is no point of the space."""
        return self._flat.values(point)


class HyperoptNativeSpace(HyperoptSpace):
    """An expression that a user wrote with Hyperopt.

    What a configuration was made of cannot be told from it: that is kept in mind.

    Parameters
    ----------
    expression : object
        What the user wrote.
    points : sequence of mapping
        Values by label to begin with.

    Raises
    ------
    ConfigError
        If it has nothing to be searched, or a label of a point is unknown.
    """

    def __init__(self, expression: Any, points: Sequence[Mapping[str, float]]) -> None:
        from hyperopt import space_eval
        from hyperopt.base import Domain

        self.expression = expression
        labels = list(Domain(None, expression, pass_expr_memo_ctrl=False).params)
        check(bool(labels), "space", "one with something to be searched", expression)
        for point in points:
            given: object = point
            known = isinstance(given, Mapping) and given.keys() <= {*labels}
            check(known, "points_to_evaluate", f"dicts of values by label, of {labels}", point)
            try:
                space_eval(expression, dict(point))
            except Exception as error:
                rule = "a dict with values for all labels that it needs"
                raise ConfigError(f"a point to evaluate must be {rule}, got {point!r}") from error
        self.points = points
        #: Values by label of each configuration, as JSON.
        self._known: dict[str, dict[str, float]] = {}

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return the configuration."""
        from hyperopt import space_eval

        point: dict[str, Any] = space_eval(self.expression, dict(values))
        self._known[_text(point)] = dict(values)
        return point

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the values by label, None if it was not suggested."""
        return self._known.get(_text(point))


def is_native(space: object) -> bool:
    """Return whether there is an expression of Hyperopt's in a search space."""
    from hyperopt.pyll import Apply

    if isinstance(space, Mapping):
        return any(map(is_native, space.values()))
    if isinstance(space, list | tuple):
        return any(map(is_native, space))
    return isinstance(space, Apply)


def _text(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True, default=repr)
