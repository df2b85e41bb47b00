"""A bridge to any optimiser that is asked for points and told what they came to."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np

from dasktune.errors import check
from dasktune.search.space_searcher import SpaceSearcher
from dasktune.search.suggest import FINISHED, EvaluatedPoint, Finished
from dasktune.space import Domain
from dasktune.trial.metrics import Metric, Modes, lookup, number

__all__ = ["AskTell", "AskTellSearch"]


class AskTell(ABC):
    """An optimiser as :class:`AskTellSearch` needs it: derive from it, and write two methods.

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

        None says that there is none before another one has been told; it must leave everything as
        it was. :data:`~dasktune.search.FINISHED` says that there will be no more.
        """

    @abstractmethod
    def tell(self, params: Mapping[str, Any], loss: float | list[float] | None) -> None:
        """Learn what a point came to.

        Parameters
        ----------
        params : mapping
            What :meth:`ask` returned, the very object unless the experiment was resumed since. Or
            a point from elsewhere: one of `points_to_evaluate` or of an earlier experiment.
        loss : float, list of float or None
            The metric turned so that lower is better; for several metrics a list. None if the trial
            failed, or a metric is missing or not finite.
        """

    def state_dict(self) -> Any:
        """Return all that it has learnt, as plain values that JSON can hold.

        None, the default, says that it has no such thing: a new optimiser is then asked and told
        all over again, which takes as long as it took.
        """
        return None

    def load_state_dict(self, state: Any) -> None:  # noqa: B027 - without a state it is not called
        """Take back what :meth:`state_dict` gave."""


class AskTellSearch(SpaceSearcher):
    """Let any optimiser search that can be asked for points and told what they came to.

    Parameters
    ----------
    make : callable
        Returns a new :class:`AskTell`, called with the search space as a dict of domains by path
        (``{"lr": Float(...), "model/depth": Integer(...)}``) and an int to seed it with. Its
        answers must depend on nothing else, and what it was told.
    space : mapping, optional
        What to search; by default the experiment's ``param_space``.
    metric : str or list of str, optional
        What is to be optimised; a list for several goals. By default the experiment's.
    mode : {"min", "max"} or list of them, optional
        Which way it is better. Likewise.
    points_to_evaluate : sequence of mapping, optional
        Configurations, or parts of one, that are suggested before the optimiser is asked. It is
        told what they came to. What they leave open is drawn at random.
    seed : int, optional
        The source of all randomness; by default the experiment's.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the space has a grid.

    Notes
    -----
    An optimiser that has its own space gets an empty one: leave ``param_space`` to plain values.

    Examples
    --------
    SciPy has no optimiser that is asked; a simple one takes these lines:

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
    >>> len(set(first.items()) & set(search.suggest("b").items()))  # it has moved along one axis
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
        #: Points that nobody has told yet what they came to, by trial.
        self._open: dict[str, Mapping[str, Any]] = {}
        #: What happened to the optimiser, in order, as values that JSON can hold.
        self._log: list[list[Any]] = []
        #: Points that were evaluated elsewhere, before there was an optimiser to tell.
        self._untold: list[EvaluatedPoint] = []
        self._optimizer: AskTell | None = None
        super().__init__(
            space, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate, seed=seed
        )

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Make the optimiser for the experiment's search space.

        Raises
        ------
        ConfigError
            If metric or mode is given nowhere, or twice and differs, there are several metrics for
            a searcher that knows one only, or the space cannot be searched.
        """
        taken = super().set_search_properties(metric, mode, config, **spec)
        self._optimizer = self._made()
        untold, self._untold = self._untold, []
        for point in untold:
            self.learn_point(point)
        return taken

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the next preset, or ask the optimiser.

        Raises
        ------
        ConfigError
            If its answer is no point of the search space.
        """
        rng = self._stream()
        config = self._preset(rng)
        if config is not None:
            self._give(["set", trial_id, self._point(config)])
        else:
            params = self._asked().ask()
            if params is None or params is FINISHED:
                return params
            config = self._config(params)
            self._open[trial_id] = params
            self._log.append(["ask", trial_id, _plain(params)])
        self._count += 1
        return self._answer(config)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the optimiser what the trial's point came to."""
        if trial_id in self._open:
            self._give(["tell", trial_id, None if error else self._outcome(result or {})])

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Tell the optimiser what a configuration came to elsewhere, stopped early or not.

        Raises
        ------
        ConfigError
            If the configuration lacks a value for a domain of the search space.
        """
        if self._optimizer is None:
            self._untold.append(point)
            return
        values = point.value if isinstance(point.value, list) else [point.value]
        loss = None if point.error else self._loss(values)
        self._give(["learn", self._point(point.parameters), loss])

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Tell the optimiser that its own point failed, and keep the other one to be told."""
        if trial_id in self._open:
            self._give(["tell", trial_id, None])
        if config is not None:
            self._give(["set", trial_id, self._point(config)])

    def _give(self, event: list[Any]) -> None:
        """Let something happen that the optimiser is not asked for, and keep it in mind."""
        self._log.append(event)
        match event:
            case ["set", trial_id, params]:
                self._open[trial_id] = params
            case ["tell", trial_id, loss]:
                self._asked().tell(self._open.pop(trial_id), loss)
            case _:
                _, params, loss = event
                self._asked().tell(params, loss)

    def _asked(self) -> AskTell:
        assert self._optimizer is not None, "set_search_properties() comes first"
        return self._optimizer

    def _made(self) -> AskTell:
        made: object = self._make(dict(self._axes), self._entropy[0])
        check(isinstance(made, AskTell), "what make(domains, seed) returns", "an AskTell", made)
        return made  # type: ignore[return-value]

    def _config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name = f"{type(self._asked()).__name__}.ask()"
        rule = f"a dict with a value for each of {list(self._axes)}, None or FINISHED"
        given: object = params
        fits = isinstance(given, Mapping) and (not self._axes or given.keys() == self._axes.keys())
        check(fits, name, rule, params)
        plain = _plain(params)
        return self._variants.filled(plain, self._stream()) if self._axes else plain

    def _point(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the optimiser knows of a configuration."""
        if not self._axes:
            return dict(config)
        chosen = self._variants.chosen(config)
        return {path: chosen[path] for path in self._axes}

    def _answer(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return super()._answer(config) if self._axes else dict(config)

    @property
    def _names(self) -> list[str]:
        return self.metric if isinstance(self.metric, list) else [self.metric or ""]

    def _outcome(self, result: Mapping[str, Any]) -> float | list[float] | None:
        """Return what is told of a trial's last result, None if it is not defined."""
        return self._loss([lookup(result, name) for name in self._names])

    def _loss(self, values: Sequence[Any]) -> float | list[float] | None:
        modes = self.mode if isinstance(self.mode, list) else [self.mode]
        real = [number(value) for value in values]
        defined = [value for value in real if value is not None and isfinite(value)]
        if len(defined) < len(modes):
            return None
        turned = [-x if mode == "max" else x for x, mode in zip(defined, modes, strict=True)]
        return turned if isinstance(self.metric, list) else turned[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's own state, or else all that happened to it."""
        own = None if self._optimizer is None else self._optimizer.state_dict()
        return {
            "count": self._count,
            "entropy": list(self._entropy),
            "open": {trial_id: _plain(params) for trial_id, params in self._open.items()},
            "optimizer": own,
            "log": [list(event) for event in self._log] if own is None else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._count, self._entropy = state["count"], list(state["entropy"])
        self._open, self._log = {}, []
        self._optimizer = self._made()
        if state["optimizer"] is not None:
            self._optimizer.load_state_dict(state["optimizer"])
            self._open.update(state["open"])
        for event in state["log"]:
            if event[0] == "ask":
                self._ask_again(*event[1:])
            else:
                self._give(list(event))

    def _ask_again(self, trial_id: str, then: Mapping[str, Any]) -> None:
        now = self._asked().ask()
        # What was tried is what it is told of, whatever it would rather have now.
        same = isinstance(now, Mapping) and _through_json(_plain(now)) == then
        self._open[trial_id] = now if same and isinstance(now, Mapping) else then
        self._log.append(["ask", trial_id, then])


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in params.items()
    }


def _through_json(params: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(params, default=repr))
