"""Conversion of search spaces to Ax's parameters, and of their values to configurations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.flat_space import FlatParameter, FlatSpace
from dasktune.search.spaces.parameters import nest
from dasktune.space import Domain
from dasktune.trial.metrics import flatten

#: The keys that a parameter's dict may have besides name and type: ``{type: keys}``.
_DICT_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "range": frozenset({"bounds", "value_type", "log_scale", "step_size"}),
    "choice": frozenset({"values", "value_type", "is_ordered", "dependents"}),
    "fixed": frozenset({"value", "value_type"}),
}


class AxSpace(ABC):
    """The conversion between points of the search and values of Ax's parameters."""

    @abstractmethod
    def configs(self) -> list[Any]:
        """Return a config of ``ax.api.configs`` for each parameter."""

    @abstractmethod
    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the values of Ax's parameters, by name, to a point."""

    @abstractmethod
    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Convert a point to the values of Ax's parameters; None if it is not in the space."""


class AxDomainSpace(AxSpace):
    """Domains as Ax parameters; the values of a choice are the indices of its options.

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
        self._flat = FlatSpace(domains, "Ax")

    def configs(self) -> list[Any]:
        """Return a range or choice config for each parameter; choices list their dependents."""
        return [self._config(parameter) for parameter in self._flat.parameters]

    def _config(self, parameter: FlatParameter) -> Any:
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        if not parameter.is_choice:
            kind = "int" if parameter.is_whole else "float"
            scaling = "log" if parameter.log else "linear"
            return RangeParameterConfig(
                parameter.name, (parameter.low, parameter.high), kind, scaling=scaling
            )
        options = list(range(int(parameter.high) + 1))
        inner = {
            option: [
                other.name for other in self._flat.parameters if other.condition == (parameter.name, option)
            ]
            for option in options
        }
        dependent = {option: names for option, names in inner.items() if names}
        return ChoiceParameterConfig(
            parameter.name, options, "int", is_ordered=False, dependent_parameters=dependent or None
        )

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the numbers of the parameters to values by path."""
        return self._flat.point(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Convert values by path to the parameters' numbers; None if not in the space."""
        return self._flat.values(point)


class AxNativeSpace(AxSpace):
    """Parameters that a user wrote for Ax; ``/`` in a name separates levels.

    Parameters
    ----------
    given : sequence
        Configs of ``ax.api.configs``.
    names : iterable of str
        The names of all parameters.
    """

    def __init__(self, given: Sequence[Any], names: Iterable[str]) -> None:
        self._given = list(given)
        self._names = frozenset(names)

    def configs(self) -> list[Any]:
        """Return the user's configs."""
        return self._given

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the values of Ax's parameters to a nested configuration."""
        return nest(values)

    def values(self, point: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of a configuration that are Ax parameters; None if there are none."""
        flat = flatten(point)
        return {name: value for name, value in flat.items() if name in self._names} or None


def native_configs(given: Sequence[Any]) -> list[Any]:
    """Convert a list of Ax parameters to configs of ``ax.api.configs``.

    Parameters
    ----------
    given : sequence
        Configs, or dicts as in Ax's older interface, ``ax.service.ax_client``.

    Raises
    ------
    ConfigError
        If the list is empty, a name occurs twice, an element is neither a config nor a dict, or a
        dict has a key that is not supported.
    """
    check(len(given) > 0, "space", "a list with at least one parameter", given)
    configs = [_native(parameter) for parameter in given]
    names = [config.name for config in configs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    check(not duplicates, "space", "a list of parameters with different names", duplicates)
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
    form = "a dict with name and type, or a parameter config of ax.api.configs"
    check(isinstance(given, Mapping) and isinstance(given.get("name"), str), name, form, given)
    kind = given.get("type")
    check(kind in _DICT_KEYS, f"the type of {given['name']!r}", f"one of {[*_DICT_KEYS]}", kind)
    options = given.keys() - {"name", "type"}
    hint = "Set other options in your own client: AxSearch(ax_client=...)."
    allowed = _DICT_KEYS[kind]
    rule = f"a dict with name, type and some of {sorted(allowed)}"
    check(options <= allowed, f"the parameter {given['name']!r}", rule, given, hint)
    try:
        return _config_from_dict(kind, given)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be {form}, got {given!r}: {error!r}") from error


def _config_from_dict(kind: str, given: Mapping[str, Any]) -> Any:
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
    """Return ``value_type`` if it is set, otherwise the narrowest type of all values."""
    if "value_type" in given:
        return given["value_type"]
    for kind, name in ((bool, "bool"), (int, "int"), (int | float, "float"), (str, "str")):
        if all(isinstance(value, kind) for value in values):
            return name
    raise TypeError(f"values of one type, not {values!r}")
