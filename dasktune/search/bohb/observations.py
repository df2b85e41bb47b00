"""What configurations have come to, budget by budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Observations", "Point"]

#: Where a configuration is in the cube; None for each parameter that it has not.
Point = Sequence[float | None]


class Observations:
    """The sets D_b of the paper: who has been observed at which budget.

    A configuration that failed counts at every budget at which it has not come to anything.

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
        #: Whatever was observed, or has failed: its point.
        self._points: dict[str, Point] = {}
        #: ``{budget: {name: loss}}``; lower is better, inf if it is not defined.
        self._losses: dict[float, dict[str, float]] = {}
        self._failed: dict[str, None] = {}

    @property
    def budgets(self) -> list[float]:
        """All budgets, the largest first."""
        return sorted(self._losses, reverse=True)

    def observe(self, name: str, point: Point, *, budget: float, loss: float) -> None:
        """Note what a configuration has come to at a budget; the latest word stands.

        Parameters
        ----------
        name : str
            Of the configuration.
        point : sequence of float or None
            Where it is; None for parameters that it has not.
        budget : float
            At which budget.
        loss : float
            Its loss, lower is better.
        """
        self._points[name] = point
        self._losses.setdefault(budget, {})[name] = loss if isfinite(loss) else inf

    def is_observed(self, name: str, budget: float) -> bool:
        """Return whether a configuration was observed at a budget."""
        return name in self._losses.get(budget, {})

    def fail(self, name: str, point: Point) -> None:
        """Note that a configuration has failed."""
        self._points[name] = point
        self._failed[name] = None

    def keep_only(self, budget: float) -> None:
        """Forget what was observed at all other budgets."""
        self._losses = {budget: self._losses[budget]} if budget in self._losses else {}

    def at(self, budget: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what counts at a budget.

        Returns
        -------
        points : ndarray of shape (n, d)
            Where they are; NaN for parameters that are not there.
        losses : ndarray of shape (n,)
            Their losses.
        """
        observed = self._losses[budget]
        losses = {**observed, **{name: inf for name in self._failed if name not in observed}}
        points = np.array([self._points[name] for name in losses], dtype=float)
        return points, np.array(list(losses.values()))

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain values; None stands for a loss that is not defined."""
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
