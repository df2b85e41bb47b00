"""A search space as most libraries want it: one flat list of parameters, some with a condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.parameter_tree import (
    compile_tree,
    draw_tree,
    join_path,
    parameter_values,
)
from dasktune.search.spaces.parameters import Options, Range
from dasktune.space.domain import Domain

__all__ = ["FlatParameter", "FlatSpace"]


@dataclass(frozen=True, slots=True)
class FlatParameter:
    """A range of numbers, or a choice among so many options that are known by their numbers.

    Parameters
    ----------
    name : str
        Its path, ``"optimizer[1]/lr"`` for one that is inside the second option of a choice.
    low, high : float
        The bounds, both included; of a choice the first and the last number.
    log : bool
        Whether every order of magnitude is as likely as any other.
    is_whole : bool
        Whether its values are integers.
    is_choice : bool
        Whether their order means nothing.
    condition : tuple of str and int, optional
        The choice, and the option of it, without which there is no such parameter. None if there is
        always.
    """

    name: str
    low: float
    high: float
    log: bool
    is_whole: bool
    is_choice: bool
    condition: tuple[str, int] | None


class FlatSpace:
    """What lies between domains and the parameters of a library, in both directions.

    Parameters
    ----------
    domains : mapping of str to Domain
        The domains by path.
    library, root : str
        Who is to search it, and what the whole is called, for errors.

    Attributes
    ----------
    parameters : tuple of FlatParameter
        What there is to search, each after the choice that it depends on. What has one value only
        is none.

    Raises
    ------
    ConfigError
        If there is a domain that has no bounds, or nothing to be searched.

    Examples
    --------
    >>> from dasktune.space import choice, uniform
    >>> space = FlatSpace({"opt": choice(["sgd", {"beta": uniform(0, 1)}])}, "X")
    >>> [(one.name, one.condition) for one in space.parameters]
    [('opt', None), ('opt[1]/beta', ('opt', 1))]
    >>> space.point({"opt": 1, "opt[1]/beta": 0.5})
    {'opt': {'beta': 0.5}}
    >>> space.values({"opt": {"beta": 0.5}})
    {'opt': 1, 'opt[1]/beta': 0.5}
    """

    def __init__(self, domains: Mapping[str, Domain], library: str, root: str = "param_space") -> None:
        # The names of paths have slashes in them: each domain is a tree of its own.
        self._trees = {path: compile_tree(domain, path, root, library) for path, domain in domains.items()}
        #: The options of each choice, as the trees name them.
        self._seen: dict[str, list[Any]] = {}
        found = []
        for path, tree in self._trees.items():
            for name, node, condition in _parameters(tree, path, None):
                if isinstance(node, Options):
                    self._seen[name] = node.seen
                found.append(_flat(name, node, condition))
        self.parameters = tuple(one for one in found if one.low < one.high)
        rule = "a dict with at least one domain of several values"
        check(bool(self.parameters), root, rule, dict(domains))

    def point(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return a value for each path, of numbers by the names of parameters.

        Of a choice it is the option's number. Values of conditions that do not hold are not looked
        at, and all are brought into their bounds.
        """
        answers = _Answers(values)
        return {path: draw_tree(tree, answers, path) for path, tree in self._trees.items()}

    def values(self, point: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the numbers by the names of parameters, None if it is no point of the space."""
        try:
            known = {
                name: value
                for path, tree in self._trees.items()
                for name, value in parameter_values(tree, point[path], path)
            }
        except ConfigError:
            return None
        return {
            one.name: self._seen[one.name].index(known[one.name]) if one.is_choice else known[one.name]
            for one in self.parameters
            if one.name in known
        }


def _parameters(
    node: Any, path: str, condition: tuple[str, int] | None
) -> Iterator[tuple[str, Options | Range, tuple[str, int] | None]]:
    """Yield names, parameters and conditions of a tree, whatever its choices may come to."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _parameters(child, join_path(path, key), condition)
    elif type(node) in (list, tuple):
        for index, child in enumerate(node):
            yield from _parameters(child, join_path(path, index), condition)
    elif isinstance(node, Options):
        yield path, node, condition
        for index, option in enumerate(node.items):
            # Under a choice of one option, things are as they are above it.
            inner = (path, index) if len(node.items) > 1 else condition
            yield from _parameters(option, f"{path}[{index}]", inner)
    elif isinstance(node, Range):
        yield path, node, condition


def _flat(name: str, node: Options | Range, condition: tuple[str, int] | None) -> FlatParameter:
    if isinstance(node, Options):
        return FlatParameter(name, 0, len(node.items) - 1, False, True, True, condition)
    return FlatParameter(name, node.low, node.high, node.log, node.is_whole, False, condition)


class _Answers:
    """Answers as an Optuna trial would, out of numbers that are known; the least one if not."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        return min(max(float(self._values.get(name, low)), low), high)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        return min(max(round(self._values.get(name, low)), low), high)

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return choices[self.suggest_int(name, 0, len(choices) - 1, log=False)]
