"""`AxClient`, the ask-and-tell interface to a client of Ax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, Literal

from dasktune.errors import ConfigError
from dasktune.search.ask_tell import AskTell
from dasktune.search.ax.ax_spaces import AxSpace
from dasktune.search.searcher import FINISHED, Finished
from dasktune.trial.metrics import Mode


def experiment_of(client: Any) -> Any:
    """Return the experiment of an Ax client, for which Ax has no public attribute.

    Parameters
    ----------
    client : ax.api.client.Client
        A client whose experiment is configured.
    """
    return client._experiment


class AxClient(AskTell):
    """Suggests the points of an Ax client; a point identifies its Ax trial.

    Parameters
    ----------
    client : ax.api.client.Client
        A client with an experiment, an objective and a generation strategy.
    space : AxSpace
        The conversion between points and values of Ax's parameters.
    goals : mapping of str to {"min", "max"}
        The metrics to optimise, in the order of the losses.
    points : sequence of mapping, default=()
        Points to suggest first: values by parameter name. Ax chooses values that a point lacks.

    Attributes
    ----------
    client : ax.api.client.Client
        The client, for inspection only.
    outcomes : list of str
        The metrics that have a constraint and are not optimised. In the argument `loss` of
        :meth:`tell`, their values follow the losses.

    Raises
    ------
    ConfigError
        If one of `points` is not in the search space.
    """

    def __init__(
        self, client: Any, space: AxSpace, goals: Mapping[str, Mode], points: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.client = client
        self._space = space
        self._goals = goals
        metric_names = experiment_of(client).optimization_config.metric_names
        self.outcomes: list[str] = sorted(metric_names - goals.keys())
        #: The index in Ax and the point of each unfinished trial.
        self._running: list[tuple[int, Mapping[str, Any]]] = []
        self._points = [self._check_point(point) for point in points]

    def _check_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        search_space = experiment_of(self.client).search_space
        values = self._space.values(point) or {}
        try:
            if len(values) < len(point):
                raise ValueError(f"the parameters are {list(search_space.parameters)}")
            for name, value in values.items():
                search_space.parameters[name].validate(value, raises=True)
            if values.keys() == search_space.parameters.keys():
                search_space.check_membership(values, raise_error=True)
        except Exception as error:  # Ax raises exceptions of many types
            rule = "complete or partial points of the search space"
            text = f"points_to_evaluate must be {rule}, got {point!r}: {error}"
            raise ConfigError(text) from None
        return values

    def ask(self) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return Ax's next point; None if it waits for results, FINISHED if there are no more."""
        from ax.exceptions.core import DataRequiredError, SearchSpaceExhausted
        from ax.exceptions.generation_strategy import MaxParallelismReachedException

        if self._has_tried_all():
            return None if self._running else FINISHED
        fixed = self._points.pop(0) if self._points else None
        try:
            index, values = self._start_trial(fixed)
        except SearchSpaceExhausted:
            # If an unfinished trial fails, Ax may suggest its point again.
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
        """Whether every point of a finite space was tried. Ax itself needs minutes to find out."""
        size = _size(experiment_of(self.client).search_space)
        trials = experiment_of(self.client).trials.values()
        if len(trials) < size:
            return False
        # Ax may suggest the point of a failed trial again.
        points = [trial.arm.parameters for trial in trials if not trial.status.is_failed]
        return len({tuple(sorted(point.items())) for point in points}) >= size

    def _start_trial(self, fixed: Mapping[str, Any] | None) -> tuple[int, Mapping[str, Any]]:
        """Start an Ax trial with the values in `fixed`; return its index and all its values."""
        parameters = experiment_of(self.client).search_space.parameters
        if fixed is not None and fixed.keys() == parameters.keys():
            return self.client.attach_trial(fixed), fixed
        [(index, values)] = self.client.get_next_trials(1, fixed_parameters=fixed).items()
        if fixed is not None and any(values.get(name) != value for name, value in fixed.items()):
            # Ax starts with the center of the space, and ignores fixed parameters for that point.
            self.client.mark_trial_abandoned(index)
            [(index, values)] = self.client.get_next_trials(1, fixed_parameters=fixed).items()
        return index, values

    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Report the result of a point to Ax, whether or not Ax suggested the point."""
        index = self._index(params)
        if index is None:
            return
        if loss is None:
            self.client.mark_trial_failed(index)
            return
        losses = loss if isinstance(loss, list) else [loss]
        values = {
            name: -value if mode == "max" else value
            for value, (name, mode) in zip(losses, self._goals.items(), strict=False)
        }
        constrained = dict(zip(self.outcomes, losses[len(values) :], strict=False))
        self.client.complete_trial(index, {**values, **constrained})

    def _index(self, params: Mapping[str, Any]) -> int | None:
        """Return the index of a point's Ax trial, and attach a new Ax trial if there is none.

        Return None if Ax does not accept the point.
        """
        for position, (index, point) in enumerate(self._running):
            if point is params or point == params:
                del self._running[position]
                return index
        values = self._space.values(params)
        try:
            return None if values is None else int(self.client.attach_trial(values))
        except (KeyError, RuntimeError, ValueError):
            # Ax cannot learn from a point that violates a constraint or lacks a value.
            return None


def _size(search_space: Any) -> float:
    """Return the number of points of a search space, or infinity. Constraints are ignored."""
    if search_space.is_hierarchical:
        return inf
    return prod(_value_count(parameter) for parameter in search_space.parameters.values())


def _value_count(parameter: Any) -> float:
    """Return the number of values of a parameter; infinity for a range of floats."""
    from ax.core.parameter import ChoiceParameter, ParameterType, RangeParameter

    if isinstance(parameter, ChoiceParameter):
        return len(parameter.values)
    if isinstance(parameter, RangeParameter):
        is_int = parameter.parameter_type is ParameterType.INT
        return float(parameter.upper - parameter.lower + 1) if is_int else inf
    # The parameter is fixed, or derived from others.
    return 1
