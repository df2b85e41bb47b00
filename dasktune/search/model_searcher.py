"""`ModelSearcher`, the base class of dasktune's own searchers with a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from dasktune.errors import check
from dasktune.search.searcher import EvaluatedPoint
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import Point, UnitCube
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Metric, Modes, number

OpenTrial = TypeVar("OpenTrial")


class ModelSearcher(SpaceSearcher, Generic[OpenTrial]):
    """Base class of searchers that model losses in the unit cube.

    It counts the unfinished trials and limits their number, adopts recorded answers, converts
    configurations to points of the unit cube and metrics to losses, and keeps evaluated points
    until the space is known. A subclass suggests (:meth:`_propose`) and learns
    (:meth:`_fail`, :meth:`_finish` and :meth:`_learn_at`). `OpenTrial` is the type of what it keeps
    of an unfinished trial, which :meth:`_opened` returns. It must be JSON-serializable; after a
    restore, a list stands for a tuple.

    Parameters
    ----------
    space : mapping or None
        The search space; the experiment's ``param_space`` if None.
    metric, mode : optional
        As in :class:`Searcher`.
    points_to_evaluate : sequence of mapping or None
        Complete or partial configurations that are suggested before all others.
    seed : int or None
        The seed of all randomness; the experiment's if None.
    max_concurrent : int
        The largest number of unfinished trials, not counting trials paused at a rung; 0 for no
        limit.

    Raises
    ------
    ConfigError
        If an argument is invalid, or the space has a grid, a domain without bounds, or no domain.
    """

    #: What to do with an evaluated point that is not in the space, for the error.
    _other_space_hint: str = ""

    def __init__(
        self,
        space: Mapping[str, Any] | None,
        *,
        metric: Metric,
        mode: Modes,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
        max_concurrent: int,
    ) -> None:
        self.max_concurrent = as_int("max_concurrent", max_concurrent, least=0)
        #: What the subclass keeps of each unfinished trial.
        self._open: dict[str, OpenTrial] = {}
        #: The unfinished trials that are paused. The limit does not count them.
        self._paused: dict[str, None] = {}
        super().__init__(space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed)

    # What a subclass defines

    @abstractmethod
    def _propose(self, rng: Generator) -> dict[str, Any] | None:
        """Return the model's configuration; None if the suggestion must be random."""

    @abstractmethod
    def _opened(self, number: int, config: Mapping[str, Any]) -> OpenTrial:
        """Return what to keep of a new trial; `number` counts the suggestions from 0."""

    @abstractmethod
    def _fail(self, trial_id: str, opened: OpenTrial) -> None:
        """Learn that a trial failed."""

    @abstractmethod
    def _finish(self, trial_id: str, opened: OpenTrial, result: Mapping[str, Any]) -> None:
        """Learn from the last result of a trial that did not fail."""

    @abstractmethod
    def _learn_at(self, point: Point, evaluated: EvaluatedPoint) -> None:
        """Learn from a configuration that was evaluated elsewhere, and is `point` in the cube."""

    def _remove(self, opened: OpenTrial) -> None:
        """Forget a trial whose configuration is replaced by a recorded one, or by none."""

    # The space

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        super()._set_space(space, name)
        self._flat = FlatSpace(self._axes, type(self).__name__, name)
        self._cube = UnitCube(self._flat.parameters)

    def _point(self, config: Mapping[str, Any]) -> Point | None:
        """Return a configuration in the unit cube; None if it is not in the space."""
        values = self._flat.values(self._variants.domain_values(config))
        return None if values is None else self._cube.vector(values)

    def _loss(self, value: Any) -> float:
        """Return the loss, lower is better; inf if the value is not a finite number."""
        real = finite(value)
        if real is None:
            return inf
        return -real if self.mode == "max" else real

    # Suggestions

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Set the limit, and return True: the searcher limits itself."""
        self.max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next preset, the model's configuration or a random one; None at the limit."""
        self._start_without_experiment()
        if self.max_concurrent and len(self._open) - len(self._paused) >= self.max_concurrent:
            return None
        rng = self._next_rng()
        config = self._next_preset(rng) or self._propose(rng) or self._variants.draw(0, rng).config
        self._open_trial(trial_id, config)
        return self._searched_part(config)

    def _open_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._open[trial_id] = self._opened(self._count, config)
        self._count += 1

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Replace the trial's configuration, or remove the trial if `config` is None."""
        self._paused.pop(trial_id, None)
        if trial_id in self._open:
            # The trial is the newest one. The recorded configuration gets its number, or else the
            # next suggestion, so that an entry of `points_to_evaluate` is not left out.
            self._remove(self._open.pop(trial_id))
            self._count -= 1
        if config is not None:
            self._open_trial(trial_id, config)

    # Results

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record the trial's last result or its failure."""
        self._paused.pop(trial_id, None)
        if trial_id not in self._open:
            return
        opened = self._open.pop(trial_id)
        if error:
            self._fail(trial_id, opened)
        elif result is not None:
            self._finish(trial_id, opened, result)

    def on_pause(self, trial_id: str) -> None:
        """Exclude the trial from the limit until it resumes."""
        if trial_id in self._open:
            self._paused[trial_id] = None

    def on_unpause(self, trial_id: str) -> None:
        """Count the trial towards the limit again."""
        self._paused.pop(trial_id, None)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Learn from a configuration that was evaluated elsewhere.

        Raises
        ------
        ConfigError
            If `value` is a list, or if the configuration is not a point of the space. If the space
            is not set yet, :meth:`set_search_properties` raises the latter.
        """
        hint = f"{type(self).__name__} optimises one metric."
        check(not isinstance(point.value, list), "value", "one number", point.value, hint)
        if self._entropy:
            self._learn(point)
        else:
            self._untold = (*self._untold, point)

    def _learn(self, evaluated: EvaluatedPoint) -> None:
        point = self._point(evaluated.parameters)
        rule, given = "a point of the search space", dict(evaluated.parameters)
        check(point is not None, "parameters", rule, given, self._other_space_hint)
        assert point is not None
        self._learn_at(point, evaluated)

    # The state

    def _abandon_open_trials(self) -> None:
        self._open.clear()
        self._paused.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON-serializable values."""
        return {
            "count": self._count,
            "entropy": list(self._entropy),
            "open": dict(self._open),
            "paused": list(self._paused),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._open = dict(state["open"])
        self._paused = dict.fromkeys(state["paused"])


def finite(value: Any) -> float | None:
    """Return a metric as a float; None if it is not a finite number.

    Examples
    --------
    >>> finite(1), finite(float("nan")), finite("1")
    (1.0, None, None)
    """
    real = number(value)
    return real if real is not None and isfinite(real) else None
