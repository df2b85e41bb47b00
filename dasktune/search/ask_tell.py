"""`AskTellSearch`, the adapter for optimisers with an ask-and-tell interface."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.random import SeedSequence

from dasktune.errors import check
from dasktune.search.searcher import FINISHED, EvaluatedPoint, Finished
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.space import Domain
from dasktune.trial.metrics import Metric, Modes, lookup, number


class AskTell(ABC):
    """Base class of optimisers for :class:`AskTellSearch`; override :meth:`ask` and :meth:`tell`.

    Examples
    --------
    >>> class Halves(AskTell):
    ...     def __init__(self, domains, seed):
    ...         self.x = 1.0
    ...     def ask(self):
    ...         return {"x": self.x}
    ...     def tell(self, params, loss):
    ...         self.x /= 2
    >>> Halves({}, 0).ask()
    {'x': 1.0}
    """

    @abstractmethod
    def ask(self) -> Mapping[str, Any] | Literal[Finished.FINISHED] | None:
        """Return a point: a value for each path of the search space.

        None means that there is none before the next call of :meth:`tell`; the optimiser's state
        must not change then. :data:`~dasktune.search.FINISHED` means that there will be no more.
        """

    @abstractmethod
    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Learn the loss of a point.

        Parameters
        ----------
        params : mapping
            The object that :meth:`ask` returned, or an equal one after the experiment was resumed.
            It may also be a point that :meth:`ask` did not return: one of `points_to_evaluate` or
            of an earlier experiment.
        loss : float, list of float or None
            The metric, negated if it is maximised, so lower is better; for several metrics a list.
            None if the trial failed, or a metric is missing or not finite.
        """

    def state_dict(self) -> Any:
        """Return the complete state as JSON-serializable values.

        None, the default, means that the state cannot be saved. All calls of :meth:`ask` and
        :meth:`tell` are then replayed on a new optimiser, which takes as long as the original
        calls.
        """
        return None

    def load_state_dict(self, state: Any) -> None:  # noqa: B027 - not called if the state is None
        """Restore the state that :meth:`state_dict` returned."""


class AskTellSearch(SpaceSearcher):
    """Suggest the points of any optimiser that has an ask-and-tell interface.

    Parameters
    ----------
    make : callable
        Returns a new :class:`AskTell`. It is called with the search space, a dict of domains by
        path (``{"lr": Float(...), "model/depth": Integer(...)}``), and an int as seed. The points
        of the optimiser must depend only on these and on the calls of :meth:`AskTell.tell`.
    space : mapping, optional
        The search space; by default the experiment's ``param_space``.
    metric : str or list of str, optional
        The metric to optimise; a list for several objectives. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Whether to minimise or maximise; if `metric` is a list, a list with a mode for each metric.
        By default the experiment's.
    points_to_evaluate : sequence of mapping, optional
        Complete or partial configurations that are suggested before the optimiser's points. Missing
        values are drawn at random. The optimiser learns from their results.
    seed : int, optional
        The seed of all randomness; by default the experiment's.

    Raises
    ------
    ConfigError
        If an argument is invalid, or the space has a grid.

    Notes
    -----
    If the optimiser defines its own space, ``param_space`` may hold only plain values; `make` then
    gets an empty dict.

    Examples
    --------
    A simple optimiser with this interface:

    >>> from numpy.random import SeedSequence, default_rng
    >>> class HillClimber(AskTell):
    ...     def __init__(self, domains, seed):
    ...         self.domains, self.rng, self.best = domains, default_rng(seed), (float("inf"), {})
    ...
    ...     def ask(self):
    ...         name = self.rng.choice(sorted(self.domains))
    ...         fresh = {k: d.sample(random_state=self.rng) for k, d in self.domains.items()}
    ...         return {**fresh, **self.best[1], name: fresh[name]}
    ...
    ...     def tell(self, params, loss):
    ...         if loss is not None and loss < self.best[0]:
    ...             self.best = loss, params
    >>> from dasktune.space import uniform
    >>> search = AskTellSearch(HillClimber, metric="acc", mode="max")
    >>> space = {"x": uniform(0, 1), "y": uniform(0, 1)}
    >>> search.set_search_properties(None, None, space, seed=SeedSequence(0))
    True
    >>> first = search.suggest("a")
    >>> search.on_trial_complete("a", {"acc": 0.9})
    >>> len(set(first.items()) & set(search.suggest("b").items()))  # one value is unchanged
    1
    """

    takes_several_metrics = True

    def __init__(
        self,
        make: Callable[[dict[str, Domain], int], AskTell],
        *,
        space: Mapping[str, Any] | None = None,
        metric: Metric = None,
        mode: Modes = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        check(callable(make), "make", "callable as make(domains, seed)", make)
        self._make = make
        #: The points of unfinished trials, by trial.
        self._open: dict[str, Mapping[str, Any]] = {}
        #: All calls of the optimiser, in order, as JSON-serializable values.
        self._log: list[list[Any]] = []
        self._optimizer: AskTell | None = None
        super().__init__(space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed)

    def _start(self, seed: SeedSequence | None) -> None:
        super()._start(seed)
        # The new optimiser knows nothing of the trials of an earlier experiment.
        self._open, self._log = {}, []
        self._optimizer = self._make_optimizer()

    def _abandon_open_trials(self) -> None:
        for trial_id in list(self._open):
            self._apply_event(["tell", trial_id, None])

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the next preset, or the optimiser's next point.

        Raises
        ------
        ConfigError
            If the optimiser returns something that is not a point of the search space.
        """
        self._start_without_experiment()
        rng = self._next_rng()
        config = self._next_preset(rng)
        if config is not None:
            self._apply_event(["set", trial_id, self._point(config)])
        else:
            params = self._require_optimizer().ask()
            if params is None or params is FINISHED:
                return params
            config = self._config(params)
            self._open[trial_id] = params
            self._log.append(["ask", trial_id, _plain(params)])
        self._count += 1
        return self._searched_part(config)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the optimiser the loss of the trial's point."""
        if trial_id in self._open:
            self._apply_event(["tell", trial_id, None if error else self._result_loss(result or {})])

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Tell the optimiser the loss of an evaluated point, whether or not it was stopped early.

        Raises
        ------
        ConfigError
            If the configuration lacks a value for a domain of the search space.
        """
        if self._optimizer is None:
            self._untold = (*self._untold, point)
            return
        values = point.value if isinstance(point.value, list) else [point.value]
        loss = None if point.error else self._loss(values)
        self._apply_event(["learn", self._point(point.parameters), loss])

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Tell the optimiser that its point failed, and store the recorded point as unfinished."""
        if trial_id in self._open:
            self._apply_event(["tell", trial_id, None])
        if config is not None:
            self._apply_event(["set", trial_id, self._point(config)])

    def _apply_event(self, event: list[Any]) -> None:
        """Apply an event other than a call of ask(), and append it to the log."""
        self._log.append(event)
        match event:
            case ["set", trial_id, params]:
                self._open[trial_id] = params
            case ["tell", trial_id, loss]:
                self._require_optimizer().tell(self._open.pop(trial_id), loss)
            case _:
                _, params, loss = event
                self._require_optimizer().tell(params, loss)

    def _require_optimizer(self) -> AskTell:
        assert self._optimizer is not None, "set_search_properties() comes first"
        return self._optimizer

    def _make_optimizer(self) -> AskTell:
        made: object = self._make(dict(self._axes), self._entropy[0])
        check(isinstance(made, AskTell), "what make(domains, seed) returns", "an AskTell", made)
        return made  # type: ignore[return-value]

    def _config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name = f"{type(self._require_optimizer()).__name__}.ask()"
        rule = f"a dict with a value for each of {list(self._axes)}, None or FINISHED"
        given: object = params
        fits = isinstance(given, Mapping) and (not self._axes or given.keys() == self._axes.keys())
        check(fits, name, rule, params)
        plain = _plain(params)
        return self._variants.fill_in(plain, self._next_rng()) if self._axes else plain

    def _point(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a configuration that the optimiser searches, by path."""
        if not self._axes:
            return dict(config)
        chosen = self._variants.domain_values(config)
        return {path: chosen[path] for path in self._axes}

    def _searched_part(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return super()._searched_part(config) if self._axes else dict(config)

    @property
    def _names(self) -> list[str]:
        return self.metric if isinstance(self.metric, list) else [self.metric or ""]

    def _result_loss(self, result: Mapping[str, Any]) -> float | list[float] | None:
        """Return the loss of a trial's last result, None if it is not defined."""
        return self._loss([lookup(result, name) for name in self._names])

    def _loss(self, values: Sequence[Any]) -> float | list[float] | None:
        modes = self.mode if isinstance(self.mode, list) else [self.mode]
        real = [number(value) for value in values]
        defined = [value for value in real if value is not None and isfinite(value)]
        if len(defined) < len(modes):
            return None
        losses = [-x if mode == "max" else x for x, mode in zip(defined, modes, strict=True)]
        return losses if isinstance(self.metric, list) else losses[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's own state, or the log of its calls if it has none."""
        own = None if self._optimizer is None else self._optimizer.state_dict()
        return {
            "count": self._count,
            "entropy": list(self._entropy),
            "open": {trial_id: _plain(params) for trial_id, params in self._open.items()},
            "optimizer": own,
            "log": [list(event) for event in self._log] if own is None else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._open, self._log = {}, []
        self._optimizer = self._make_optimizer()
        if state["optimizer"] is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self._open.update(state["open"])
        for event in state["log"]:
            if event[0] == "ask":
                self._replay_ask(*event[1:])
            else:
                self._apply_event(list(event))

    def _replay_ask(self, trial_id: str, recorded: Mapping[str, Any]) -> None:
        point = self._require_optimizer().ask()
        # If the answers differ, the recorded point counts: that is what the trial evaluated.
        same = isinstance(point, Mapping) and _through_json(_plain(point)) == recorded
        self._open[trial_id] = point if same and isinstance(point, Mapping) else recorded
        self._log.append(["ask", trial_id, recorded])


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}


def _through_json(params: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(params, default=repr))
