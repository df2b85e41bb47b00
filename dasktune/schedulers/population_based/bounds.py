"""The bounded hyperparameters of PB2 as points of a unit cube."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, isfinite, log
from numbers import Integral
from typing import Any, Final

from numpy.random import Generator

from dasktune.errors import check
from dasktune.schedulers.metric_scheduler import finite_number
from dasktune.schedulers.population_based.explore import MISSING, walk
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Uniform
from dasktune.trial.metrics import number

_RULE: Final = "[lowest, highest], uniform, loguniform, randint or lograndint, or a dict of these"


@dataclass(frozen=True, slots=True)
class _Axis:
    """One hyperparameter, scaled to [0, 1] between its bounds."""

    lowest: float
    highest: float
    is_log: bool
    #: Whether the value is an int if the configuration has no old value, whose type it would keep.
    is_whole: bool

    def position(self, value: object) -> float | None:
        """Return a value's coordinate, perhaps outside [0, 1]; None unless it is a valid number."""
        given = number(value)
        if given is None or not isfinite(given) or (self.is_log and given <= 0):
            return None
        low, high = self._scaled(self.lowest), self._scaled(self.highest)
        return (self._scaled(given) - low) / (high - low) if low < high else 0.0

    def value(self, position: float, old: object) -> float:
        """Return the value at a coordinate, as an int if the old value was one."""
        low, high = self._scaled(self.lowest), self._scaled(self.highest)
        ahead = position * (high - low)
        exact = self.lowest * exp(ahead) if self.is_log else low + ahead
        whole = self.is_whole if old is MISSING else isinstance(old, Integral)
        least, most = ceil(self.lowest), floor(self.highest)
        if whole and least <= most:
            return min(max(round(exact), least), most)
        return float(min(max(exact, self.lowest), self.highest))

    def _scaled(self, value: float) -> float:
        return log(value) if self.is_log else value


class Bounds:
    """The bounds of hyperparameters, and the conversion of configurations to points.

    Parameters
    ----------
    bounds : mapping of str to object
        For each hyperparameter a pair of numbers, both included; a domain made by ``uniform``,
        ``loguniform``, ``randint`` or ``lograndint``; or a mapping of these for a nested dict.

    Raises
    ------
    ConfigError
        If the mapping is empty, or one of its values is anything else.

    Examples
    --------
    >>> from dasktune.space import loguniform
    >>> bounds = Bounds({"lr": loguniform(1e-4, 1e-2), "model": {"width": [16, 64]}})
    >>> bounds.point({"lr": 1e-4, "model": {"width": 40}})
    (0.0, 0.5)
    >>> bounds.config_at({"lr": 1e-4, "model": {"width": 40}}, [0.0, 0.76])
    {'lr': 0.0001, 'model': {'width': 52}}
    """

    def __init__(self, bounds: object) -> None:
        self._tree = _checked("hyperparam_bounds", bounds)
        #: Names of the hyperparameters, nested ones as paths, in the order of the coordinates.
        self.names = [*_names(self._tree)]

    def point(self, config: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return the point of a configuration, perhaps outside the cube.

        Parameters
        ----------
        config : mapping
            The configuration.

        Returns
        -------
        tuple of float or None
            The coordinates; None if a hyperparameter is missing or not a valid number.
        """
        found: list[float] = []

        def look(axis: _Axis, old: object) -> object:
            position = axis.position(old)
            if position is not None:
                found.append(position)
            return old

        walk(self._tree, config, look)
        return tuple(found) if len(found) == len(self.names) else None

    def config_at(self, config: Mapping[str, Any], point: Sequence[float]) -> dict[str, Any]:
        """Return a configuration with the hyperparameters at a point.

        Parameters
        ----------
        config : mapping
            The configuration that has all other values. Hyperparameters that are ints stay ints.
        point : sequence of float
            The coordinates, from 0 to 1.
        """
        left = iter(point)
        return walk(self._tree, config, lambda axis, old: axis.value(next(left), old))

    def draw(self, rng: Generator) -> list[float]:
        """Draw a point uniformly."""
        drawn: list[float] = rng.random(len(self.names)).tolist()
        return drawn

    def fill_in(self, config: Mapping[str, Any], rng: Generator) -> dict[str, Any]:
        """Return a configuration in which missing hyperparameters are drawn.

        Parameters
        ----------
        config : mapping
            The configuration.
        rng : Generator
            Source of randomness.
        """
        return walk(
            self._tree, config, lambda axis, old: axis.value(rng.random(), old) if old is MISSING else old
        )


def _checked(name: str, bounds: object) -> dict[str, Any]:
    check(isinstance(bounds, Mapping) and bool(bounds), name, "a dict that is not empty", bounds)
    assert isinstance(bounds, Mapping)
    tree: dict[str, Any] = {}
    for key, one in bounds.items():
        path = f"{name}[{key!r}]"
        tree[key] = _checked(path, one) if isinstance(one, Mapping) else _axis(path, one)
    return tree


def _axis(path: str, given: object) -> _Axis:
    if isinstance(given, Float | Integer):
        sampler = given.get_sampler()
        check(isinstance(sampler, Uniform | LogUniform), path, _RULE, given)
        whole = isinstance(given, Integer)
        return _Axis(given.lower, given.upper - whole, isinstance(sampler, LogUniform), whole)
    is_pair = isinstance(given, list | tuple) and len(given) == 2
    check(is_pair, path, _RULE, given)
    assert isinstance(given, list | tuple)
    lowest, highest = (finite_number(path, end) for end in given)
    check(lowest <= highest, path, "[lowest, highest], in this order", given)
    return _Axis(lowest, highest, False, all(isinstance(end, Integral) for end in given))


def _names(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, one in tree.items():
        if isinstance(one, dict):
            yield from _names(one, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}"
