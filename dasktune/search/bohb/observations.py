"""`Observations`, the losses of configurations at each budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.search.spaces.unit_cube import Point


class Observations:
    """The paper's sets D_b: the configurations observed at each budget b, with their losses.

    A configuration that failed has an infinite loss at every budget at which it was not observed.

    Examples
    --------
    >>> evidence = Observations()
    >>> evidence.observe("a", [0.5], budget=1, loss=0.2)
    >>> evidence.observe("b", [0.7], budget=1, loss=0.1)
    >>> evidence.fail("c", [0.9])
    >>> evidence.at(1)[1].tolist()
    [0.2, 0.1, inf]
    """

    def __init__(self) -> None:
        #: The point of each configuration that was observed or failed, by name.
        self._points: dict[str, Point] = {}
        #: ``{budget: {name: loss}}``; lower is better, inf if not defined.
        self._losses: dict[float, dict[str, float]] = {}
        self._failed: dict[str, None] = {}

    @property
    def budgets(self) -> list[float]:
        """The budgets with observations, the largest first."""
        return sorted(self._losses, reverse=True)

    def observe(self, name: str, point: Point, *, budget: float, loss: float) -> None:
        """Record the loss of a configuration at a budget; a later loss replaces an earlier one.

        Parameters
        ----------
        name : str
            The name of the configuration.
        point : sequence of float or None
            The configuration in the unit cube; None for parameters that it does not have.
        budget : float
            The budget, in units of the scheduler's time attribute.
        loss : float
            The loss, lower is better; a loss that is not finite is recorded as inf.
        """
        self._points[name] = point
        self._losses.setdefault(budget, {})[name] = loss if isfinite(loss) else inf

    def is_observed(self, name: str, budget: float) -> bool:
        """Return whether there is a loss of the configuration at this budget."""
        return name in self._losses.get(budget, {})

    def fail(self, name: str, point: Point) -> None:
        """Record that a configuration failed."""
        self._points[name] = point
        self._failed[name] = None

    def keep_only(self, budget: float) -> None:
        """Delete the observations at all other budgets."""
        self._losses = {budget: self._losses[budget]} if budget in self._losses else {}

    def rename(self, new_name: Callable[[int, str], str]) -> None:
        """Rename the configurations.

        Parameters
        ----------
        new_name : callable
            Given the number of a configuration, counted from 0, and its name, returns another one,
            which no other configuration gets.
        """
        names = {name: new_name(number, name) for number, name in enumerate(self._points)}
        self._points = {names[name]: point for name, point in self._points.items()}
        self._losses = {
            budget: {names[name]: loss for name, loss in losses.items()}
            for budget, losses in self._losses.items()
        }
        self._failed = {names[name]: None for name in self._failed}

    def at(self, budget: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return D_b: the configurations observed at a budget, and all failed ones.

        Returns
        -------
        points : ndarray of shape (n, d)
            The configurations; NaN for parameters that they do not have.
        losses : ndarray of shape (n,)
            Their losses, lower is better; inf if not defined.
        """
        observed = self._losses[budget]
        losses = {**observed, **{name: inf for name in self._failed if name not in observed}}
        points = np.array([self._points[name] for name in losses], dtype=float)
        return points, np.array(list(losses.values()))

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values; infinite losses become None."""
        return {
            "points": {name: list(point) for name, point in self._points.items()},
            "losses": [
                [budget, {name: None if loss == inf else loss for name, loss in losses.items()}]
                for budget, losses in self._losses.items()
            ],
            "failed": list(self._failed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._points = dict(state["points"])
        self._losses = {
            budget: {name: inf if loss is None else loss for name, loss in losses.items()}
            for budget, losses in state["losses"]
        }
        self._failed = dict.fromkeys(state["failed"])
