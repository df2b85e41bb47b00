"""Suggestions by the model of BOHB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf, isfinite, log2
from typing import Any, Final

from numpy.random import Generator

from dasktune.errors import check
from dasktune.search.bohb.model import BOHBConfig, has_enough, propose
from dasktune.search.bohb.observations import Observations, Point
from dasktune.search.searcher import EvaluatedPoint
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.spaces.unit_cube import UnitCube
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Metric, Modes, lookup, number

__all__ = ["TuneBOHB"]

#: The budget of evaluations without a known budget. It is the smallest, so a model uses them only
#: until there are enough evaluations with a known budget.
_UNKNOWN_BUDGET: Final = 0.0


class TuneBOHB(SpaceSearcher):
    """Suggest what is likelier among good configurations than among bad ones, budget by budget.

    The model of BOHB [1]_. It goes with
    :class:`~dasktune.schedulers.HyperBandForBOHB`, and with any other scheduler, or none.

    Parameters
    ----------
    space : mapping, optional
        What to search; by default the experiment's ``param_space``.
    bohb_config : mapping, optional
        Parameters of the method, by the names of its reference implementation:
        ``min_points_in_model`` (int, default and least: one more than there are parameters),
        ``top_n_percent`` (15), ``num_samples`` (64), ``random_fraction`` (1/3),
        ``bandwidth_factor`` (3), ``min_bandwidth`` (1e-3).
    metric : str, optional
        What is to be optimised. By default the experiment's.
    mode : {"min", "max"}, optional
        Which way it is better. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested before all others. What they leave open
        is drawn at random.
    seed : int, optional
        The source of all randomness; by default the experiment's.
    max_concurrent : int, default=0
        Most trials that are unfinished at a time, those that wait at a rung aside; 0 is no limit.
    time_attr : str, default="training_iteration"
        What budgets are measured by if no scheduler tells them.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has a grid, a domain without bounds, or nothing
        to be searched.

    Notes
    -----
    For each budget there is a set D_b of configurations with their losses there. The model uses
    the largest budget with N_min + 2 of them: the best q percent are good, the rest bad
    (equation 3), each with a kernel density, l and g (equation 2). Of N_s candidates, drawn from l
    with wider kernels, the one with the largest l(x) / g(x) is suggested; one suggestion in three
    is random (algorithm 2).

    `HyperBandForBOHB` tells the budget of each rung. Where no scheduler does, a trial counts at 1,
    2, 4, 8... units of `time_attr`, with its first result there or after, and where it ends.

    A configuration that failed, or whose value at a budget is not a finite number, is a bad one,
    and never among the good. What was evaluated elsewhere counts at the times of its
    `intermediate_values`; without these, as if at the least of budgets.

    Parameters inside a choice are there only with their option. In the model others get a value
    from configurations that have them, as in the reference implementation.

    A suggestion costs 3 ms with 100 observed configurations of 10 parameters, 0.25 s with 10,000.

    References
    ----------
    .. [1] Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale",
       ICML 2018, arXiv:1807.01774.

    Examples
    --------
    >>> from numpy.random import SeedSequence
    >>> from dasktune.space import uniform
    >>> search = TuneBOHB({"x": uniform(-1, 1)}, metric="loss", mode="min")
    >>> search.set_search_properties(None, None, {}, seed=SeedSequence(0))
    False
    >>> for number in range(40):
    ...     x = search.suggest(f"t{number}")["x"]
    ...     search.on_trial_complete(f"t{number}", {"loss": x**2, "training_iteration": 1})
    >>> late = [abs(search.suggest(f"u{number}")["x"]) for number in range(40)]
    >>> sum(x < 0.2 for x in late) > 20
    True
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        *,
        seed: int | None = None,
        max_concurrent: int = 0,
        time_attr: str = "training_iteration",
    ) -> None:
        self._config = BOHBConfig.from_mapping(bohb_config)
        self.max_concurrent = as_int("max_concurrent", max_concurrent, least=0)
        check(isinstance(time_attr, str), "time_attr", "the name of a reported number", time_attr)
        self.time_attr = time_attr
        #: The points of those that have not ended; None if it is not in the space.
        self._open: dict[str, Point | None] = {}
        self._paused: dict[str, None] = {}
        self._evidence = Observations()
        #: Whether a scheduler tells budgets.
        self._is_told = False
        #: How many points were evaluated elsewhere; and those that wait for a space.
        self._num_evaluated = 0
        self._untold: list[EvaluatedPoint] = []
        super().__init__(space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed)

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take what the constructor left open, and learn what was evaluated before.

        Raises
        ------
        ConfigError
            As of every searcher of spaces, and if an evaluated point is none of the space.
        """
        taken = super().set_search_properties(metric, mode, config, **spec)
        untold, self._untold = self._untold, []
        for point in untold:
            self._learn(point)
        return taken

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        super()._set_space(space, name)
        self._flat = FlatSpace(self._axes, "BOHB", name)
        self._cube = UnitCube(self._flat.parameters)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Keep at most so many trials unfinished from now on."""
        self.max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next preset, a random configuration, or the best candidate of the model."""
        if self.max_concurrent and len(self._open) - len(self._paused) >= self.max_concurrent:
            return None
        rng = self._next_rng()
        config = self._next_preset(rng) or self._sample_model(rng) or self._variants.draw(0, rng).config
        self._open[trial_id] = self._point(config)
        self._count += 1
        return self._searched_part(config)

    def _sample_model(self, rng: Generator) -> dict[str, Any] | None:
        """Return the best candidate of the model; None if it is the turn of a random one."""
        if rng.random() < self._config.random_fraction:
            return None
        least = self._config.min_points(len(self._cube.options))
        for budget in self._evidence.budgets:
            points, losses = self._evidence.at(budget)
            if has_enough(losses, least):
                vector = propose(points, losses, self._cube.options, self._config, rng)
                point = self._flat.point(self._cube.values(vector))
                return self._variants.fill_in(point, rng)
        return None

    def _point(self, config: Mapping[str, Any]) -> Point | None:
        values = self._flat.values(self._variants.domain_values(config))
        return None if values is None else self._cube.vector(values)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Learn what a trial has come to at a budget."""
        self._observe(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn what a trial has come to, or that it has failed."""
        if result is not None and not error:
            self._observe(trial_id, result, last=True)
        self._paused.pop(trial_id, None)
        point = self._open.pop(trial_id, None)
        if error and point is not None:
            self._evidence.fail(trial_id, point)

    def on_pause(self, trial_id: str) -> None:
        """Do not count the paused trial in any limit until it continues."""
        if trial_id in self._open:
            self._paused[trial_id] = None

    def on_unpause(self, trial_id: str) -> None:
        """Count the trial again."""
        self._paused.pop(trial_id, None)

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Take another configuration for the trial, or forget it."""
        self._open.pop(trial_id, None)
        self._paused.pop(trial_id, None)
        if config is not None:
            self._open[trial_id] = self._point(config)

    def _observe(self, trial_id: str, result: Mapping[str, Any], *, last: bool = False) -> None:
        point = self._open.get(trial_id)
        if point is None:
            return
        budget = self._budget(trial_id, result, last)
        if budget is not None:
            loss = self._loss(lookup(result, str(self.metric)))
            self._evidence.observe(trial_id, point, budget=budget, loss=loss)

    def _budget(self, trial_id: str, result: Mapping[str, Any], last: bool) -> float | None:
        """Return at which budget a result counts, None if at none."""
        told = _finite(lookup(result, "hyperband_info/budget"))
        if told is not None and not self._is_told:
            # What came before was not at the scheduler's budgets.
            self._is_told = True
            self._evidence.keep_only(_UNKNOWN_BUDGET)
        if self._is_told:
            return told
        time = _finite(lookup(result, self.time_attr))
        if last:
            return _UNKNOWN_BUDGET if time is None else time
        if time is None or time < 1:
            return None
        level = _level(time)
        return None if self._evidence.is_observed(trial_id, level) else level

    def _loss(self, value: Any) -> float:
        real = _finite(value)
        if real is None:
            return inf
        return -real if self.mode == "max" else real

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Learn from a configuration that was evaluated elsewhere.

        `intermediate_values` are its losses after 1, 2, 3... units of `time_attr`. If they are
        given, `value` is ignored; without them a pruned point is ignored.

        Raises
        ------
        ConfigError
            If it is no point of the space. If the space is not known yet, that shows when it is.
        """
        if self._entropy:
            self._learn(point)
        else:
            self._untold.append(point)

    def _learn(self, evaluated: EvaluatedPoint) -> None:
        point = self._point(evaluated.parameters)
        rule = "a point of the search space"
        check(point is not None, "parameters", rule, dict(evaluated.parameters))
        assert point is not None
        name = f"evaluated {self._num_evaluated}"
        self._num_evaluated += 1
        steps = evaluated.intermediate_values
        if evaluated.error:
            self._evidence.fail(name, point)
        elif steps:
            for time in {_level(time) for time in range(1, len(steps) + 1)} | {float(len(steps))}:
                loss = self._loss(steps[int(time) - 1])
                self._evidence.observe(name, point, budget=time, loss=loss)
        elif not evaluated.pruned:
            loss = self._loss(evaluated.value)
            self._evidence.observe(name, point, budget=_UNKNOWN_BUDGET, loss=loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the trials that have not ended, and all that was observed."""
        return {
            "count": self._count,
            "entropy": list(self._entropy),
            "open": dict(self._open),
            "paused": list(self._paused),
            "evidence": self._evidence.state_dict(),
            "is_told": self._is_told,
            "num_evaluated": self._num_evaluated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._open = dict(state["open"])
        self._paused = dict.fromkeys(state["paused"])
        self._evidence.load_state_dict(state["evidence"])
        self._is_told = state["is_told"]
        self._num_evaluated = state["num_evaluated"]


def _finite(value: Any) -> float | None:
    real = number(value)
    return real if real is not None and isfinite(real) else None


def _level(time: float) -> float:
    """Return the largest power of 2 that is not above a time, which is at least 1."""
    return 2.0 ** floor(log2(time))
