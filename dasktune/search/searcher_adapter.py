"""`SearchGenerator`, the adapter from `Searcher` to `SearchAlgorithm`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from dasktune.errors import ConfigError, check
from dasktune.search.concurrency_limiter import ConcurrencyLimiter
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.search.searcher import FINISHED, Searcher
from dasktune.space.domain import Domain
from dasktune.space.tree import copy_tree
from dasktune.space.variants import experiment_tag


class SearchGenerator(SearchAlgorithm):
    """Gets `num_samples` configurations from a searcher and passes it their results.

    Each configuration consists of the plain values of the search space, updated with the searcher's
    suggestion.

    Parameters
    ----------
    searcher : Searcher
        The searcher that suggests configurations.

    Raises
    ------
    ConfigError
        If `searcher` is not a Searcher.

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
        #: All suggested trials, by name; True until the trial ends.
        self._open: dict[str, bool] = {}

    def setup(self, spec: SearchSpec) -> None:
        """Pass the search problem to the searcher.

        Raises
        ------
        ConfigError
            If the space has a grid, if both `param_space` and the searcher define domains, or if
            metric, mode or limit are set differently in two places.
        """
        for path, value in _nodes(spec.space):
            if isinstance(value, Mapping) and "grid_search" in value:
                raise ConfigError(
                    f"param_space[{path!r}] must be a domain or a plain value, got {value!r}. "
                    f"{self._name} cannot search a grid: use choice() instead of grid_search()."
                )
        limit = spec.max_concurrent
        if limit and not self.searcher.set_max_concurrency(limit):
            self.searcher = ConcurrencyLimiter(self.searcher, limit)
        searches_space = self.searcher.set_search_properties(
            spec.metric, spec.mode, spec.space, seed=spec.seed, num_samples=spec.num_samples
        )
        has_no_domain = not any(isinstance(value, Domain) for _, value in _nodes(spec.space))
        check(
            searches_space or has_no_domain,
            "param_space",
            f"made of plain values, because {self._name} has its own search space",
            dict(spec.space),
            "Set the search space in one place.",
        )
        self._num_samples = spec.num_samples
        self._space = copy_tree(dict(spec.space))

    @property
    def total_samples(self) -> int | None:
        """The largest number of trials, or None if there is no limit."""
        return self._num_samples if self._num_samples >= 0 else None

    @property
    def is_finished(self) -> bool:
        """Whether there will be no more suggestions."""
        total = self.total_samples
        return self._finished or (total is not None and self._count >= total)

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the configuration for a new trial named `trial_id`.

        Raises
        ------
        ConfigError
            If there was a trial of this name before, or the searcher returned something else than a
            dict, None or FINISHED.
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
        # A copy, because user code may change the configuration that it gets.
        config = _merge(self._space, deepcopy(answer))
        missing = [path for path, value in _nodes(config) if isinstance(value, Domain)]
        check(not missing, name, "a dict with a value for every domain", answer, f"Missing: {missing}")
        suggestion = Suggestion(config=config, tag=experiment_tag(self._count, answer))
        self._open[trial_id] = True
        self._count += 1
        return suggestion

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Record the configuration of an earlier session as suggested, and notify the searcher."""
        answered = trial_id in self._open
        if config is None:
            self._open.pop(trial_id, None)
        else:
            self._open[trial_id] = True
        self._count += (config is not None) - answered
        self.searcher.adopt(trial_id, config)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass a result to the searcher if it suggested the trial and the trial has not ended."""
        if self._open.get(trial_id):
            self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Notify the searcher of the end of a trial that it suggested, once for each trial."""
        if self._open.get(trial_id):
            self._open[trial_id] = False
            self.searcher.on_trial_complete(trial_id, result, error)

    def on_trial_pause(self, trial_id: str) -> None:
        """Notify the searcher that a trial that it suggested is paused."""
        if self._open.get(trial_id):
            self.searcher.on_pause(trial_id)

    def on_trial_unpause(self, trial_id: str) -> None:
        """Notify the searcher that a trial that it suggested resumes."""
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
        """Restore the state that :meth:`state_dict` returned."""
        self._count = state["count"]
        self._finished = state["finished"]
        self._open = dict(state["open"])
        self.searcher.load_state_dict(state["searcher"])


def _nodes(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the path and value of each node of a search space, with ``/`` between levels."""
    yield path, value
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, inner in items:
        yield from _nodes(inner, f"{path}/{key}" if path else str(key))


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both dicts merged at every level; values of `above` override those of `below`."""
    merged: dict[str, Any] = copy_tree(dict(below))
    for key, value in above.items():
        under = below.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _merge(under, value)
        else:
            merged[key] = value
    return merged
