"""Search spaces as Optuna can search them: what it is asked, and what its answers stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.parameter_tree import (
    compile_tree,
    draw_tree,
    leaves,
    nest,
    parameter_values,
    varies,
)
from dasktune.search.spaces.parameters import Options, Parameter, parameter_for
from dasktune.space.domain import Function
from dasktune.space.variants import resolve
from dasktune.trial.metrics import flatten

__all__ = ["DefinedByRun", "OptunaSpace", "TreeSpace", "make_space"]

#: How a search space that a user gives to a searcher is called in errors; else it is param_space.
_SEARCHER_SPACE: Final = "space"


class OptunaSpace(ABC):
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


def make_space(given: Any, name: str = _SEARCHER_SPACE) -> OptunaSpace:
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


class DefinedByRun(OptunaSpace):
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
        return nest({**trial.params, **(more or {})})

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return all the values by path: which of them are asked for, only the function knows."""
        return flatten(config)

    known_params = params_of


class TreeSpace(OptunaSpace):
    """A dict of domains and Optuna distributions, at any depth, among plain values.

    Parameters
    ----------
    space : mapping
        As the user wrote it.
    name : {"space", "param_space"}
        As for :func:`make_space`.

    Raises
    ------
    ConfigError
        If it has a grid, a domain that Optuna cannot search, or nothing to be searched.
    """

    def __init__(self, space: Mapping[str, Any], name: str = _SEARCHER_SPACE) -> None:
        self._tree = compile_tree(dict(space), "", name, "Optuna", parameter_of)
        nodes = list(leaves(self._tree))
        rule = "a dict with at least one domain"
        check(any(isinstance(node, Parameter) for node in nodes), name, rule, dict(space))
        self._whole = name == _SEARCHER_SPACE
        self.conditional = any(isinstance(node, Options) and node.branches for node in nodes)
        self._computes = any(isinstance(node, Function) for node in nodes)

    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return the tree with all its values; functions see those that were asked for."""
        config: dict[str, Any] = draw_tree(self._tree, trial, "")
        if self._computes:
            config = resolve(config, seed)
        return config if self._whole else _searched_part(self._tree, config)

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a configuration, which may be a part of one."""
        return dict(parameter_values(self._tree, nest(config), ""))

    def known_params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of those branches of the tree that fit."""
        known: dict[str, Any] = {}
        for key in self._tree.keys() & config.keys():
            try:
                known.update(parameter_values(self._tree[key], config[key], key))
            except ConfigError:
                continue
        return known


def _searched_part(node: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parts of a configuration that are not plain values of the space."""
    return {
        key: _searched_part(child, config[key]) if isinstance(child, dict) else config[key]
        for key, child in node.items()
        if varies(child)
    }


def parameter_of(node: Any, where: str, library: str) -> Any:
    """Return the parameter for a domain or an Optuna distribution, anything else as it is.

    Raises
    ------
    ConfigError
        If Optuna cannot search the domain.
    """
    from optuna.distributions import BaseDistribution

    return (
        DistributionParameter(node)
        if isinstance(node, BaseDistribution)
        else parameter_for(node, where, library)
    )


class DistributionParameter(Parameter):
    """A distribution of Optuna's own.

    Parameters
    ----------
    distribution : optuna.distributions.BaseDistribution
        As the user wrote it.
    """

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def ask(self, trial: Any, name: str) -> Any:
        """Return a value of the distribution."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        given = self._distribution
        if isinstance(given, CategoricalDistribution):
            return trial.suggest_categorical(name, given.choices)
        kind = trial.suggest_float if isinstance(given, FloatDistribution) else trial.suggest_int
        return kind(name, given.low, given.high, step=given.step, log=given.log)

    def answer_for(self, value: Any, where: str) -> Any:
        """Return the value."""
        return value
