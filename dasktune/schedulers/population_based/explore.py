"""The explore step of PBT: perturb a configuration within the allowed values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from dasktune.errors import ConfigError, check
from dasktune.schedulers.metric_scheduler import finite_number
from dasktune.space.domain import Categorical, Domain, Function
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import Quantized
from dasktune.space.tree import copy_tree, variables

_RULE: Final = "a list of values, a domain, a function without arguments, or a dict of these"

#: Placeholder for a value that a configuration lacks.
MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class _Odds:
    """The probability of drawing a value again, and the perturbation factors."""

    resample: float
    factors: tuple[float, ...]

    def resamples(self, rng: Generator) -> bool:
        return bool(rng.random() < self.resample)

    def factor(self, rng: Generator) -> float:
        return self.factors[int(rng.integers(len(self.factors)))]


class Mutations:
    """The hyperparameters that PBT may change, and how.

    Parameters
    ----------
    mutations : mapping of str to object
        For each hyperparameter a list or tuple of values, a domain, a function without arguments
        that draws a value, or a mapping of these for a nested dict.
    resample_probability : float
        Probability that a value is drawn again instead of perturbed, in [0, 1].
    perturbation_factors : sequence of float
        Factors for numbers; one of them is drawn at random.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Examples
    --------
    >>> from numpy.random import default_rng
    >>> from dasktune.space import uniform
    >>> mutations = Mutations(
    ...     {"lr": uniform(0, 1), "width": [16, 32, 64]},
    ...     resample_probability=0.0,
    ...     perturbation_factors=(1.2, 0.8),
    ... )
    >>> mutations.explore({"lr": 0.5, "width": 32, "depth": 3}, default_rng(0))
    {'lr': 0.4, 'width': 64, 'depth': 3}
    """

    def __init__(
        self,
        mutations: Mapping[str, Any],
        *,
        resample_probability: float,
        perturbation_factors: Sequence[float],
    ) -> None:
        likely = finite_number("resample_probability", resample_probability)
        check(0 <= likely <= 1, "resample_probability", "in [0, 1]", resample_probability)
        given: object = perturbation_factors
        many = isinstance(given, list | tuple) and len(given) > 0
        check(many, "perturbation_factors", "a tuple of numbers", given)
        factors = tuple(finite_number("perturbation_factors", one) for one in perturbation_factors)
        self._odds = _Odds(likely, factors)
        self._tree = _checked("hyperparam_mutations", mutations)

    def __bool__(self) -> bool:
        return bool(self._tree)

    def explore(self, config: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return a perturbed copy of a configuration.

        Parameters
        ----------
        config : mapping
            The configuration; it is not changed.
        rng : Generator
            Source of randomness. Functions among the mutations use their own.
        """
        return walk(self._tree, config, lambda how, old: _moved(how, old, self._odds, rng))

    def fill_in(self, config: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return a configuration in which missing hyperparameters are drawn.

        Parameters
        ----------
        config : mapping
            The configuration.
        rng : Generator
            As for :meth:`explore`.
        """
        return walk(self._tree, config, lambda how, old: _drawn(how, rng) if old is MISSING else old)


def walk(tree: Mapping[str, Any], config: object, step: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Return a configuration in which `step` has replaced each value named in a tree, in order.

    Parameters
    ----------
    tree : mapping
        A rule for each value, with dicts for nested ones.
    config : object
        The configuration; it is not changed. Anything but a mapping counts as an empty one.
    step : callable
        ``step(how, old)`` gets the rule and the old value, perhaps ``MISSING``, and returns the new
        value.
    """
    known: dict[str, Any] = copy_tree(dict(config)) if isinstance(config, Mapping) else {}
    for name, how in tree.items():
        old = known.get(name, MISSING)
        known[name] = walk(how, old, step) if isinstance(how, dict) else step(how, old)
    return known


def _checked(name: str, mutations: object) -> dict[str, Any]:
    check(isinstance(mutations, Mapping), name, "a dict", mutations)
    assert isinstance(mutations, Mapping)
    hint = "Write the list of values without grid_search."
    check(set(mutations) != {"grid_search"}, name, "free of grids", mutations, hint)
    tree: dict[str, Any] = {}
    for key, how in mutations.items():
        path = f"{name}[{key!r}]"
        if isinstance(how, Mapping):
            tree[key] = _checked(path, how)
            continue
        hint = "Set a value that depends on others in custom_explore_fn."
        check(not isinstance(how, Function), path, "no sample_from", how, hint)
        if isinstance(how, Categorical):
            how = how.categories
        if isinstance(how, list | tuple):
            check(bool(how), path, "at least one value", how)
            check(not any(variables(list(how))), path, "free of domains within its values", how)
            how = tuple(how)
        check(isinstance(how, tuple | Domain) or callable(how), path, _RULE, how)
        tree[key] = how
    return tree


def _drawn(how: Any, rng: Generator) -> Any:
    if isinstance(how, tuple):
        return how[int(rng.integers(len(how)))]
    value = how.sample(random_state=rng) if isinstance(how, Domain) else how()
    return value.item() if isinstance(value, np.generic) else value


def _moved(how: Any, old: Any, odds: _Odds, rng: Generator) -> Any:
    """Return a perturbed value, or a drawn one if there is no old value."""
    if old is MISSING or odds.resamples(rng):
        return _drawn(how, rng)
    value = old.item() if isinstance(old, np.generic) else old
    if isinstance(how, tuple):
        return _shifted(how, value, rng)
    if isinstance(value, bool):
        # There is no step between True and False: a bool changes only when it is drawn again.
        return value
    if not isinstance(value, int | float) or not isfinite(value):
        return _drawn(how, rng)
    return _scaled(how, value, odds.factor(rng))


def _shifted(values: tuple[Any, ...], value: Any, rng: Generator) -> Any:
    """Return a neighbour of a value in the list, or the value itself at an end."""
    if value not in values:
        return _drawn(values, rng)
    index = values.index(value) + (1 if rng.random() < 0.5 else -1)
    return values[min(max(index, 0), len(values) - 1)]


def _scaled(how: Any, value: float, factor: float) -> float:
    if isinstance(how, Integer):
        quantum = int(how.sampler.q) if isinstance(how.sampler, Quantized) else 1
        last = how.upper if quantum > 1 else how.upper - 1
        step = _whole_step(value / quantum, factor) * quantum
        return min(max(step, -(-how.lower // quantum) * quantum), last // quantum * quantum)
    if isinstance(how, Float):
        scaled = value * factor
        if isinstance(how.sampler, Quantized):
            scaled = _whole_step(value / how.sampler.q, factor) * how.sampler.q
        return min(max(scaled, how.lower), how.upper)
    return _whole_step(value, factor) if isinstance(value, int) else value * factor


def _whole_step(value: float, factor: float) -> int:
    """Return a whole number times a factor, rounded, and changed by at least 1.

    Without this minimum small numbers would never change: 2 * 1.2 rounds to 2.
    """
    before, after = round(value), round(value * factor)
    if after != before or factor == 1 or before == 0:
        return after
    return before + (1 if (factor > 1) == (before > 0) else -1)


def apply_explore_function(
    function: Callable[[dict[str, Any]], Any], config: dict[str, Any]
) -> dict[str, Any]:
    """Return the configuration that `custom_explore_fn` returns.

    Parameters
    ----------
    function : callable
        Gets a configuration, which it may change, and returns one.
    config : dict
        The configuration that the function gets.

    Raises
    ------
    ConfigError
        If the function returns anything but a dict.
    """
    made: object = function(config)
    if not isinstance(made, dict):
        raise ConfigError(f"the return value of custom_explore_fn must be a dict, got {made!r}")
    return made
