"""Optuna's own distributions as parameters."""

from __future__ import annotations

from typing import Any

from dasktune.search.parameters import Parameter, range_of

__all__ = ["Given", "parameter_of"]


def parameter_of(node: Any, where: str, library: str) -> Any:
    """Return the parameter for a domain or an Optuna distribution, anything else as it is.

    Raises
    ------
    ConfigError
        If Optuna cannot search the domain.
    """
    from optuna.distributions import BaseDistribution

    return Given(node) if isinstance(node, BaseDistribution) else range_of(node, where, library)


class Given(Parameter):
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

    def told(self, value: Any, where: str) -> Any:
        """Return the value."""
        return value
