"""Search spaces for Optuna: dicts of domains or distributions, and define-by-run functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.errors import ConfigError, check
from dasktune.search.spaces.parameters import (
    Options,
    Parameter,
    compile_tree,
    draw_tree,
    leaves,
    nest,
    parameter_for,
    parameter_values,
    varies,
)
from dasktune.space.domain import Function
from dasktune.space.variants import resolve
from dasktune.trial.metrics import flatten

#: The name in errors of a search space that is an argument of the searcher; else "param_space".
_SEARCHER_SPACE: Final = "space"


class OptunaSpace(ABC):
    """Creates configurations from the suggestions of an Optuna trial.

    Attributes
    ----------
    conditional : bool
        Whether a parameter may exist only for some values of others.
    """

    conditional: bool

    @abstractmethod
    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return a configuration with the parameters that an Optuna trial suggests.

        Domains that functions of the space return are drawn with `seed`.
        """

    @abstractmethod
    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Optuna parameters, by name, that lead to a whole or partial configuration.

        Raises
        ------
        ConfigError
            If no parameters lead to it.
        """

    @abstractmethod
    def known_params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Optuna parameters of the parts of a configuration that are in the space."""


def make_space(given: Any, name: str = _SEARCHER_SPACE) -> OptunaSpace:
    """Convert a search space that a user wrote.

    Parameters
    ----------
    given : dict or callable
        The search space: a dict, or a function of an Optuna trial.
    name : {"space", "param_space"}, default="space"
        The argument that holds the space. Suggestions for "param_space" leave out its constants,
        which `SearchGenerator` adds.

    Raises
    ------
    ConfigError
        If `given` is neither, has a domain that Optuna cannot search, or has no domain.
    """
    if not isinstance(given, Mapping):
        rule = "a dict with domains, or a function that asks an Optuna trial"
        check(callable(given), name, rule, given)
        return DefinedByRun(given)
    return TreeSpace(given, name)


class DefinedByRun(OptunaSpace):
    """A space that a function defines by the parameters that it requests from an Optuna trial.

    Parameters
    ----------
    function : callable
        ``function(trial)`` returns None, or a dict whose values override the parameters.
    """

    conditional = True

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def draw(self, trial: Any, seed: SeedSequence) -> dict[str, Any]:
        """Return the parameters, nested by ``/`` in their names, and the function's own values."""
        try:
            more = self._function(trial)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(f"space(trial) must not raise, got {problem}") from error
        valid = more is None or isinstance(more, Mapping)
        check(valid, "space(trial)", "a dict or None", more)
        return nest({**trial.params, **(more or {})})

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return all values by path: only the function knows which of them are parameters."""
        return flatten(config)

    known_params = params_of


class TreeSpace(OptunaSpace):
    """A dict of domains and Optuna distributions, at any depth, among plain values.

    Parameters
    ----------
    space : mapping
        The search space as the user wrote it.
    name : {"space", "param_space"}, default="space"
        As in :func:`make_space`.

    Raises
    ------
    ConfigError
        If the space has a grid, a domain that Optuna cannot search, or no domain.
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
        """Return the tree with all its values; functions are called with the suggested ones."""
        config: dict[str, Any] = draw_tree(self._tree, trial, "")
        if self._computes:
            config = resolve(config, seed)
        return config if self._whole else _searched_part(self._tree, config)

    def params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a whole or partial configuration."""
        return dict(parameter_values(self._tree, nest(config), ""))

    def known_params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters under those keys of the space that match the configuration."""
        known: dict[str, Any] = {}
        for key in self._tree.keys() & config.keys():
            try:
                known.update(parameter_values(self._tree[key], config[key], key))
            except ConfigError:
                continue
        return known


def _searched_part(node: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the constants of the space."""
    return {
        key: _searched_part(child, config[key]) if isinstance(child, dict) else config[key]
        for key, child in node.items()
        if varies(child)
    }


def parameter_of(node: Any, where: str, library: str) -> Any:
    """Convert a domain or an Optuna distribution to a parameter; return other values unchanged.

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
    """A parameter with an Optuna distribution.

    Parameters
    ----------
    distribution : optuna.distributions.BaseDistribution
        The distribution as the user wrote it.
    """

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def suggest(self, trial: Any, name: str) -> Any:
        """Return a value of the distribution."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        given = self._distribution
        if isinstance(given, CategoricalDistribution):
            return trial.suggest_categorical(name, given.choices)
        suggest = trial.suggest_float if isinstance(given, FloatDistribution) else trial.suggest_int
        return suggest(name, given.low, given.high, step=given.step, log=given.log)

    def encode(self, value: Any, where: str) -> Any:
        """Return the value unchanged."""
        return value
