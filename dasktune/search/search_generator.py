"""Make a search algorithm of a searcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.concurrency_limiter import ConcurrencyLimiter
from dasktune.search.searcher import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.search.suggest import FINISHED, Searcher
from dasktune.space.domain import Domain
from dasktune.space.tag import experiment_tag
from dasktune.space.tree import copied

__all__ = ["SearchGenerator"]


class SearchGenerator(SearchAlgorithm):
    """Ask a searcher for as many configurations as the user wants, and tell it what came of them.

    Every trial gets the plain values of the search space, and over them what the searcher suggests.

    Parameters
    ----------
    searcher : Searcher
        Who suggests.

    Raises
    ------
    ConfigError
        If `searcher` is no searcher.

    Examples
    --------
    >>> from dasktune.search import QuasiRandomSearch
    >>> SearchGenerator(QuasiRandomSearch()).answers_at_once
    True
    """

    def __init__(self, searcher: Searcher) -> None:
        given: object = searcher
        check(isinstance(given, Searcher), "searcher", "a Searcher", searcher)
        self.searcher = searcher
        self.answers_at_once = searcher.answers_at_once
        self._name = type(searcher).__name__
        self._space: dict[str, Any] = {}
        self._num_samples = 0
        self._finished = False
        self._count = 0
        #: Whether each trial that was ever suggested is still to end.
        self._open: dict[str, bool] = {}

    def setup(self, spec: SearchSpec) -> None:
        """Hand the task to the searcher.

        Raises
        ------
        ConfigError
            If the space has a grid, or both it and the searcher say what to search, or metric, mode
            or limit are set differently in two places.
        """
        for path, value in _nodes(spec.space):
            if isinstance(value, Mapping) and "grid_search" in value:
                raise ConfigError(
                    f"param_space[{path!r}] must be a domain or a plain value, got {value!r}. "
                    f"{self._name} samples: use choice() instead of grid_search()."
                )
        limit = spec.max_concurrent
        if limit and not self.searcher.set_max_concurrency(limit):
            self.searcher = ConcurrencyLimiter(self.searcher, limit)
        taken = self.searcher.set_search_properties(
            spec.metric, spec.mode, spec.space, seed=spec.seed, num_samples=spec.num_samples
        )
        plain = not any(isinstance(value, Domain) for _, value in _nodes(spec.space))
        check(
            taken or plain,
            "param_space",
            f"made of plain values, because {self._name} has its own search space",
            dict(spec.space),
            "Set the search space in one place.",
        )
        self._num_samples = spec.num_samples
        self._space = copied(dict(spec.space))

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be at most, or None if there is no end."""
        return self._num_samples if self._num_samples >= 0 else None

    @property
    def is_finished(self) -> bool:
        """Whether there will be no more suggestions."""
        total = self.total_samples
        return self._finished or (total is not None and self._count >= total)

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the configuration of the next trial, which will be called `trial_id`.

        Raises
        ------
        ConfigError
            If there was a trial of this name before, or the searcher's answer is no dict.
        """
        check(trial_id not in self._open, "trial_id", "new to the search", trial_id)
        if self.is_finished:
            return Suggestion(config=None, finished=True)
        answer = self.searcher.suggest(trial_id)
        if answer is FINISHED:
            self._finished = True
            return Suggestion(config=None, finished=True)
        if answer is None:
            return Suggestion(config=None)
        given: object = answer
        name = f"{self._name}.suggest(...)"
        check(isinstance(given, dict), name, "a dict, None or FINISHED", answer)
        # The searcher must not see what user code does to its configuration.
        config = _laid_over(self._space, deepcopy(answer))
        missing = [path for path, value in _nodes(config) if isinstance(value, Domain)]
        check(not missing, name, "a dict with a value for every domain", answer, f"Left: {missing}")
        suggestion = Suggestion(config=config, tag=experiment_tag(self._count, answer))
        self._open[trial_id] = True
        self._count += 1
        return suggestion

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Take a configuration of an earlier session as suggested, and tell the searcher."""
        answered = trial_id in self._open
        if config is None:
            self._open.pop(trial_id, None)
        else:
            self._open[trial_id] = True
        self._count += (config is not None) - answered
        self.searcher.adopt(trial_id, config)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass it on, if the searcher has suggested the trial and it has not ended."""
        if self._open.get(trial_id):
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass it on, once for each trial that the searcher has suggested."""
        if self._open.get(trial_id):
            self._open[trial_id] = False
            self.searcher.on_trial_complete(trial_id, result, error)

    def on_trial_pause(self, trial_id: str) -> None:
        """Pass it on, if the searcher has suggested the trial."""
        if self._open.get(trial_id):
            self.searcher.on_pause(trial_id)

    def on_trial_unpause(self, trial_id: str) -> None:
        """Pass it on, if the searcher has suggested the trial."""
        if self._open.get(trial_id):
            self.searcher.on_unpause(trial_id)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, the trials, and the searcher's own state."""
        return {
            "count": self._count,
            "finished": self._finished,
            "open": dict(self._open),
            "searcher": self.searcher.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._count = state["count"]
        self._finished = state["finished"]
        self._open = dict(state["open"])
        self.searcher.load_state_dict(state["searcher"])


def _nodes(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Walk over everything inside a search space, with ``/`` between the names."""
    yield path, value
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, inner in items:
        yield from _nodes(inner, f"{path}/{key}" if path else str(key))


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new dict of both; at every level `above` goes first."""
    merged: dict[str, Any] = copied(dict(below))
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _laid_over(under, value)
        else:
            merged[key] = value
    return merged
