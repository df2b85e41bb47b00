"""A client of Ax as an optimiser that is asked and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, Literal

from dasktune.errors import ConfigError
from dasktune.search.ask_tell import AskTell
from dasktune.search.ax.ax_spaces import AxSpace
from dasktune.search.searcher import FINISHED, Finished
from dasktune.trial.metrics import Mode

__all__ = ["AxClient"]


class AxClient(AskTell):
    """Its trials are found again by their points.

    Parameters
    ----------
    client : ax.api.client.Client
        One that can be asked.
    space : AxSpace
        What its answers stand for.
    goals : mapping of str to {"min", "max"}
        The metrics, in the order of the losses.
    points : sequence of mapping
        Values of some or all parameters, by name, to begin with. What one leaves open Ax chooses.

    Attributes
    ----------
    client : ax.api.client.Client
        The client, to be looked at.
    outcomes : list of str
        Further metrics with constraints; their values follow the losses.

    Raises
    ------
    ConfigError
        If one of `points` is none of the search space.
    """

    def __init__(
        self,
        client: Any,
        space: AxSpace,
        goals: Mapping[str, Mode],
        points: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.client = client
        self._space = space
        self._goals = goals
        known = client._experiment.optimization_config.metric_names
        self.outcomes: list[str] = sorted(known - goals.keys())
        #: The number, in Ax, and the point of each trial that runs.
        self._running: list[tuple[int, Mapping[str, Any]]] = []
        self._points = [self._check_point(point) for point in points]

    def _check_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        searched = self.client._experiment.search_space
        values = self._space.values(point) or {}
        try:
            if len(values) < len(point):
                raise ValueError(f"parameters are {list(searched.parameters)}")
            for name, value in values.items():
                searched.parameters[name].validate(value, raises=True)
            if values.keys() == searched.parameters.keys():
                searched.check_membership(values, raise_error=True)
        except Exception as error:  # it has many exceptions of its own
            rule = "points of the space, or parts of one"
            text = f"points_to_evaluate must be {rule}, got {point!r}: {error}"
            raise ConfigError(text) from None
        return values

    def ask(self) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return what Ax proposes; None if it waits for results, FINISHED if there is no more."""
        from ax.exceptions.core import DataRequiredError, SearchSpaceExhausted
        from ax.exceptions.generation_strategy import MaxParallelismReachedException

        if self._has_tried_all():
            return None if self._running else FINISHED
        fixed = self._points.pop(0) if self._points else None
        try:
            index, values = self._start_trial(fixed)
        except SearchSpaceExhausted:
            # A trial that fails may be proposed again.
            return None if self._running else FINISHED
        except (DataRequiredError, MaxParallelismReachedException):
            if not self._running:
                raise
            if fixed is not None:
                self._points.insert(0, fixed)
            return None
        point = self._space.point(values)
        self._running.append((index, point))
        return point

    def _has_tried_all(self) -> bool:
        """Whether no point is left: of a few points Ax itself finds out within minutes only."""
        size = _size(self.client._experiment.search_space)
        trials = self.client._experiment.trials.values()
        if len(trials) < size:
            return False
        # One that has failed may be proposed again.
        points = [one.arm.parameters for one in trials if not one.status.is_failed]
        return len({tuple(sorted(point.items())) for point in points}) >= size

    def _start_trial(self, fixed: Mapping[str, Any] | None) -> tuple[int, Mapping[str, Any]]:
        """Return the number and the values of a new trial, some of them perhaps known."""
        searched = self.client._experiment.search_space.parameters
        if fixed is not None and fixed.keys() == searched.keys():
            return self.client.attach_trial(fixed), fixed
        [(index, values)] = self.client.get_next_trials(1, fixed_parameters=fixed).items()
        if fixed is not None and any(values.get(name) != one for name, one in fixed.items()):
            # The center of the space, with which Ax begins, is the center whatever is fixed.
            self.client.mark_trial_abandoned(index)
            [(index, values)] = self.client.get_next_trials(1, fixed_parameters=fixed).items()
        return index, values

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Report the result of a point to Ax, whether Ax proposed it or not."""
        index = self._index(params)
        if index is None:
            return
        if loss is None:
            self.client.mark_trial_failed(index)
            return
        told = loss if isinstance(loss, list) else [loss]
        values = {
            name: -value if mode == "max" else value
            for value, (name, mode) in zip(told, self._goals.items(), strict=False)
        }
        others = dict(zip(self.outcomes, told[len(values) :], strict=False))
        self.client.complete_trial(index, {**values, **others})

    def _index(self, params: Mapping[str, Any]) -> int | None:
        """Return the number of a point's trial, a new one if it has none; None if it can't."""
        for place, (index, point) in enumerate(self._running):
            if point is params or point == params:
                del self._running[place]
                return index
        values = self._space.values(params)
        try:
            return None if values is None else int(self.client.attach_trial(values))
        except (KeyError, RuntimeError, ValueError):
            # It breaks a constraint or lacks a value: nothing that Ax can learn from.
            return None


def _size(searched: Any) -> float:
    """Return the largest number of points of a search space; infinity if it is not finite."""
    if searched.is_hierarchical:
        return inf
    return prod(_count(one) for one in searched.parameters.values())


def _count(parameter: Any) -> float:
    from ax.core.parameter import ChoiceParameter, ParameterType, RangeParameter

    if isinstance(parameter, ChoiceParameter):
        return len(parameter.values)
    if isinstance(parameter, RangeParameter):
        whole = parameter.parameter_type is ParameterType.INT
        return float(parameter.upper - parameter.lower + 1) if whole else inf
    # It is fixed, or derived from others.
    return 1
