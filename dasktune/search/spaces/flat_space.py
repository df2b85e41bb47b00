"""Search spaces as flat lists of parameters, some of which are conditional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.parameters import (
    Options,
    Range,
    compile_tree,
    draw_tree,
    join_path,
    parameter_values,
)
from dasktune.space.domain import Domain


@dataclass(frozen=True, slots=True)
class FlatParameter:
    """A range of numbers, or a choice as the range of its options' indices.

    Parameters
    ----------
    name : str
        The path; ``"optimizer[1]/lr"`` is inside the second option of the choice ``optimizer``.
    low, high : float
        The bounds, both included; for a choice the first and the last index.
    log : bool
        Whether the range has a log scale.
    is_whole : bool
        Whether the values are integers.
    is_choice : bool
        Whether the parameter is a choice, so its values have no order.
    condition : tuple of str and int, or None
        The name of a choice and the index of the option in which the parameter exists. None if the
        parameter is unconditional.
    """

    name: str
    low: float
    high: float
    log: bool
    is_whole: bool
    is_choice: bool
    condition: tuple[str, int] | None


class FlatSpace:
    """Domains as a flat list of parameters, with conversions between their values.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.
    library, root : str
        The names of the library and of the search space, for error messages.

    Attributes
    ----------
    parameters : tuple of FlatParameter
        The parameters with more than one value, each after the choice that it depends on.

    Raises
    ------
    ConfigError
        If a domain has no bounds, or no domain has more than one value.

    Examples
    --------
    >>> from dasktune.space import choice, uniform
    >>> space = FlatSpace({"opt": choice(["sgd", {"beta": uniform(0, 1)}])}, "X")
    >>> [(parameter.name, parameter.condition) for parameter in space.parameters]
    [('opt', None), ('opt[1]/beta', ('opt', 1))]
    >>> space.point({"opt": 1, "opt[1]/beta": 0.5})
    {'opt': {'beta': 0.5}}
    >>> space.values({"opt": {"beta": 0.5}})
    {'opt': 1, 'opt[1]/beta': 0.5}
    """

    def __init__(self, domains: Mapping[str, Domain], library: str, root: str = "param_space") -> None:
        # One tree for each domain, because a tree rejects keys that contain slashes.
        self._trees = {path: compile_tree(domain, path, root, library) for path, domain in domains.items()}
        #: The `Options.seen` of each choice, by name.
        self._seen: dict[str, list[Any]] = {}
        found = []
        for path, tree in self._trees.items():
            for name, node, condition in _parameters(tree, path, None):
                if isinstance(node, Options):
                    self._seen[name] = node.seen
                found.append(_flat(name, node, condition))
        self.parameters = tuple(parameter for parameter in found if parameter.low < parameter.high)
        rule = "a dict with at least one domain of several values"
        check(bool(self.parameters), root, rule, dict(domains))

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Convert the parameters' values to a point: a value for each path of `domains`.

        Parameters
        ----------
        values : mapping of str to float
            The number of each parameter, by name; for a choice the index of the option. Numbers are
            clipped to the bounds, missing ones are replaced by the lower bound, and those of
            parameters whose condition does not hold are ignored.
        """
        trial = _FixedTrial(values)
        return {path: draw_tree(tree, trial, path) for path, tree in self._trees.items()}

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Convert a point to the numbers of the parameters, by name; None if not in the space."""
        try:
            known = {
                name: value
                for path, tree in self._trees.items()
                for name, value in parameter_values(tree, point[path], path)
            }
        except ConfigError:
            return None
        return {
            parameter.name: self._seen[parameter.name].index(known[parameter.name])
            if parameter.is_choice
            else known[parameter.name]
            for parameter in self.parameters
            if parameter.name in known
        }


def _parameters(
    node: Any, path: str, condition: tuple[str, int] | None
) -> Iterator[tuple[str, Options | Range, tuple[str, int] | None]]:
    """Yield the name, node and condition of each parameter of a tree, in all options."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _parameters(child, join_path(path, key), condition)
    elif type(node) in (list, tuple):
        for index, child in enumerate(node):
            yield from _parameters(child, join_path(path, index), condition)
    elif isinstance(node, Options):
        yield path, node, condition
        for index, option in enumerate(node.items):
            # A choice with one option is not a parameter, so it cannot be a condition.
            inner = (path, index) if len(node.items) > 1 else condition
            yield from _parameters(option, f"{path}[{index}]", inner)
    elif isinstance(node, Range):
        yield path, node, condition


def _flat(name: str, node: Options | Range, condition: tuple[str, int] | None) -> FlatParameter:
    if isinstance(node, Options):
        return FlatParameter(name, 0, len(node.items) - 1, False, True, True, condition)
    return FlatParameter(name, node.low, node.high, node.log, node.is_whole, False, condition)


class _FixedTrial:
    """A stand-in for an Optuna trial that suggests given numbers, and lower bounds for the rest."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        return min(max(float(self._values.get(name, low)), low), high)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        return min(max(round(self._values.get(name, low)), low), high)

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return choices[self.suggest_int(name, 0, len(choices) - 1, log=False)]
