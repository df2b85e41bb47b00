"""Search spaces as Optuna can search them: what it is asked, and what its answers stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import ConfigError, check
from dasktune.search.optuna.parameters import parameter_of
from dasktune.search.parameter_tree import compiled, drawn, leaves, nested, params, varies
from dasktune.search.parameters import Options, Parameter
from dasktune.space.domain import Function
from dasktune.space.variants import resolve
from dasktune.trial.metrics import flatten

__all__ = ["DefinedByRun", "Space", "TreeSpace", "space_of"]

#: How a search space that a user gives to a searcher is called in errors; else it is param_space.
_OWN: Final = "space"


class Space(ABC):
    """Asks Optuna for configurations.

    Attributes
    ----------
    conditional : bool
        Whether what is asked for may depend on what was answered.
    """

    conditional: bool

    @abstractmethod
    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return a configuration, whose parameters an Optuna trial is asked for.

        What is random in it besides, because functions return domains, comes from `seed`.
        """

    @abstractmethod
    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters, as Optuna names them, that lead to a configuration.

        Raises
        ------
        ConfigError
            If none do.
        """

    @abstractmethod
    def known_params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the parameters that can be told from a configuration, perhaps strange."""


def space_of(given: Any, name: str = _OWN) -> Space:
    """Return the space that a user describes, by a dict or by a function.

    Parameters
    ----------
    given : dict or callable
        What the user wrote.
    name : {"space", "param_space"}, default="space"
        Where. Of `param_space` everybody knows the plain values.

    Raises
    ------
    ConfigError
        If it is neither, has a domain that Optuna cannot search, or nothing to be searched.
    """
    if not isinstance(given, Mapping):
        rule = "a dict with domains, or a function that asks an Optuna trial"
        check(callable(given), name, rule, given)
        return DefinedByRun(given)
    return TreeSpace(given, name)


class DefinedByRun(Space):
    """What a function asks an Optuna trial for, and what it returns besides.

    Parameters
    ----------
    function : callable
        ``function(trial)`` returns None, or a dict that is laid over the parameters.
    """

    conditional = True

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return what is asked for, with ``/`` in a name for levels, and what is returned."""
        try:
            more = self._function(trial)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(f"space(trial) must not raise, got {problem}") from error
        valid = more is None or isinstance(more, Mapping)
        check(valid, "space(trial)", "a dict or None", more)
        return nested({**trial.params, **(more or {})})

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return all the values by path: which of them are asked for, only the function knows."""
        return flatten(config)

    known_params = params_of


class TreeSpace(Space):
    """A dict of domains and Optuna distributions, at any depth, among plain values.

    Parameters
    ----------
    space : mapping
        As the user wrote it.
    name : {"space", "param_space"}
        As for :func:`space_of`.

    Raises
    ------
    ConfigError
        If it has a grid, a domain that Optuna cannot search, or nothing to be searched.
    """

    def __init__(self, space: Mapping[str, Any], name: str = _OWN) -> None:
        self._tree = compiled(dict(space), "", name, "Optuna", parameter_of)
        nodes = list(leaves(self._tree))
        rule = "a dict with at least one domain"
        check(any(isinstance(node, Parameter) for node in nodes), name, rule, dict(space))
        self._whole = name == _OWN
        self.conditional = any(isinstance(node, Options) and node.branches for node in nodes)
        self._computes = any(isinstance(node, Function) for node in nodes)

    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return the tree with all its values; functions see those that were asked for."""
        config: dict[str, Any] = drawn(self._tree, trial, "")
        if self._computes:
            config = resolve(config, seed)
        return config if self._whole else _varied(self._tree, config)

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a configuration, which may be a part of one."""
        return dict(params(self._tree, nested(config), ""))

    def known_params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of those branches of the tree that fit."""
        known: dict[str, Any] = {}
        for key in self._tree.keys() & config.keys():
            try:
                known.update(params(self._tree[key], config[key], key))
            except ConfigError:
                continue
        return known


def _varied(node: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parts of a configuration that are not plain values of the space."""
    return {
        key: _varied(child, config[key]) if isinstance(child, dict) else config[key]
        for key, child in node.items()
        if varies(child)
    }
