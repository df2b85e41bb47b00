"""Search spaces as Ax's parameters, and what its answers stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.flat_space import FlatParameter, FlatSpace
from dasktune.search.spaces.parameter_tree import nest
from dasktune.space import Domain
from dasktune.trial.metrics import flatten

__all__ = ["AxDomainSpace", "AxNativeSpace", "AxSpace", "native_configs"]

#: What may be said of a parameter in a dict, beside its name, by its type.
_DICT_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "range": frozenset({"bounds", "value_type", "log_scale", "step_size"}),
    "choice": frozenset({"values", "value_type", "is_ordered", "dependents"}),
    "fixed": frozenset({"value", "value_type"}),
}


class AxSpace(ABC):
    """What lies between configurations and Ax's parameters."""

    @abstractmethod
    def configs(self) -> list[Any]:
        """Return what Ax makes its parameters of."""

    @abstractmethod
    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the point of the search that values of parameters make."""

    @abstractmethod
    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of parameters of a point, None if it is no point of the space."""


class AxDomainSpace(AxSpace):
    """Domains as parameters: of a choice Ax knows the options' numbers.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.

    Raises
    ------
    ConfigError
        If there is a domain without bounds, or nothing to be searched.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._flat = FlatSpace(domains, "Ax")

    def configs(self) -> list[Any]:
        """Return a range or a choice for each; Ax knows which depend on an option."""
        return [self._config(one) for one in self._flat.parameters]

    def _config(self, one: FlatParameter) -> Any:
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        if not one.is_choice:
            kind = "int" if one.is_whole else "float"
            scaling = "log" if one.log else "linear"
            return RangeParameterConfig(one.name, (one.low, one.high), kind, scaling=scaling)
        options = list(range(int(one.high) + 1))
        below = {
            option: [other.name for other in self._flat.parameters if other.condition == (one.name, option)]
            for option in options
        }
        dependent = {option: names for option, names in below.items() if names}
        return ChoiceParameterConfig(
            one.name, options, "int", is_ordered=False, dependent_parameters=dependent or None
        )

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by path."""
        return self._flat.point(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return numbers by the names of parameters, None if it is no point of the space."""
        return self._flat.values(point)


class AxNativeSpace(AxSpace):
    """Parameters that a user wrote for Ax, with ``/`` in their names for levels.

    Parameters
    ----------
    given : sequence
        Ax's own config objects.
    names : iterable of str
        All the names.
    """

    def __init__(self, given: Sequence[Any], names: Iterable[str]) -> None:
        self._given = list(given)
        self._names = frozenset(names)

    def configs(self) -> list[Any]:
        """Return them."""
        return self._given

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration."""
        return nest(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return those of a configuration's values that are parameters; None if none is."""
        flat = flatten(point)
        return {name: value for name, value in flat.items() if name in self._names} or None


def native_configs(given: Sequence[Any]) -> list[Any]:
    """Return Ax's config objects for a list of them, or of dicts as its older interface has them.

    Raises
    ------
    ConfigError
        If one of them is neither, or says what cannot be said in a dict.
    """
    check(len(given) > 0, "space", "a list with at least one parameter", given)
    configs = [_native(one) for one in given]
    names = [one.name for one in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    check(not twice, "space", "a list of parameters with a name each", twice)
    return configs


def _native(given: Any) -> Any:
    from ax.api import configs

    kinds = (
        configs.RangeParameterConfig,
        configs.ChoiceParameterConfig,
        configs.DerivedParameterConfig,
    )
    if isinstance(given, kinds):
        return given
    name = "a parameter in space"
    rule = "a dict with name and type, or a parameter config of ax.api.configs"
    check(isinstance(given, Mapping) and isinstance(given.get("name"), str), name, rule, given)
    kind = given.get("type")
    check(kind in _DICT_KEYS, f"the type of {given['name']!r}", f"one of {[*_DICT_KEYS]}", kind)
    said = given.keys() - {"name", "type"}
    hint = "Say more by AxSearch(ax_client=...)."
    allowed = _DICT_KEYS[kind]
    check(said <= allowed, f"the parameter {given['name']!r}", f"of {sorted(allowed)}", given, hint)
    try:
        return _of_dict(kind, given)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be {rule}, got {given!r}: {error!r}") from error


def _of_dict(kind: str, given: Mapping[str, Any]) -> Any:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    if kind == "range":
        low, high = given["bounds"]
        return RangeParameterConfig(
            given["name"],
            (low, high),
            _type_of(given, [low, high]),
            step_size=given.get("step_size"),
            scaling="log" if given.get("log_scale") else "linear",
        )
    values = [given["value"]] if kind == "fixed" else list(given["values"])
    return ChoiceParameterConfig(
        given["name"],
        values,
        _type_of(given, values),
        is_ordered=given.get("is_ordered"),
        dependent_parameters=given.get("dependents"),
    )


def _type_of(given: Mapping[str, Any], values: Sequence[Any]) -> Any:
    """Return the type that is given, or the narrowest that all values are of."""
    if "value_type" in given:
        return given["value_type"]
    for kind, name in ((bool, "bool"), (int, "int"), (int | float, "float"), (str, "str")):
        if all(isinstance(value, kind) for value in values):
            return name
    raise TypeError(f"values of one type, not {values!r}")
