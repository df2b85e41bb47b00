"""`Pool`: the configurations of a recorded set, of which a search takes one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube
from dasktune.space import Variants

__all__ = ["Pool"]


class Pool:
    """Configurations, each of which can be taken once.

    Parameters
    ----------
    space : mapping
        The search space.
    configs : sequence of mapping
        The configurations.
    """

    def __init__(self, space: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> None:
        self.configs = configs
        self._flat = FlatSpace(Variants(space).domains, "the pool")
        self._cube = UnitCube(self._flat.parameters)
        self._points = np.array([self._vector(config) for config in configs])
        self._is_choice = self._cube.options > 0
        self._is_taken = np.zeros(len(configs), bool)

    @property
    def is_empty(self) -> bool:
        """Whether all configurations are taken."""
        return bool(self._is_taken.all())

    def take(self, suggested: Mapping[str, Any]) -> int:
        """Take the configuration that is nearest to a suggestion, and return its row.

        Parameters
        ----------
        suggested : mapping
            A configuration of the space.
        """
        steps = np.abs(self._points - np.array(self._vector(suggested), dtype=float))
        distances = (np.where(self._is_choice, steps > 0, steps) ** 2).sum(axis=1)
        row = int(np.argmin(np.where(self._is_taken, inf, distances)))
        self._is_taken[row] = True
        return row

    def _vector(self, config: Mapping[str, Any]) -> list[float | None]:
        values = self._flat.values(config)
        assert values is not None, f"{config} is not in the space"
        return self._cube.vector(values)
