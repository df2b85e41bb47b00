"""Random experiments without real trials, in which `SearcherContract` runs a search algorithm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final

from numpy.random import default_rng

from dasktune.search.search_algorithm import SearchAlgorithm, Suggestion

#: Results without a usable number; in the last one the metrics are missing.
_UNDEFINED: Final[tuple[dict[str, Any], ...]] = (
    {"loss": nan, "accuracy": nan},
    {"loss": inf, "accuracy": -inf},
    {"loss": -inf, "accuracy": 0.5},
    {"loss": "low", "accuracy": None},
    {},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTrouble:
    """Probabilities of failures, undefined results and refused suggestions.

    Parameters
    ----------
    failures : float, default=0
        A trial ends with a failure.
    silent : float, default=0
        A trial ends without a result.
    undefined : float, default=0
        A result has no usable number.
    refused : float, default=0
        A restored experiment withdraws a suggestion, because its journal has another one.
    """

    failures: float = 0.0
    silent: float = 0.0
    undefined: float = 0.0
    refused: float = 0.0


class SearchDrill:
    """Requests suggestions, and reports, pauses and ends their trials in a random order.

    Parameters
    ----------
    search : SearchAlgorithm
        The search algorithm, set up.
    slots : int
        The maximum number of unfinished trials that are not paused.
    seed : int
        The seed of the order of events and of failures, not of the search.
    pauses : bool, default=False
        Whether trials are paused at times.
    trouble : SearchTrouble, optional
        Probabilities of failures; 0 by default.
    in_thread : bool, default=False
        Whether each suggestion is requested in a new thread, as on a cluster.
    """

    def __init__(
        self,
        search: SearchAlgorithm,
        *,
        slots: int,
        seed: int,
        pauses: bool = False,
        trouble: SearchTrouble | None = None,
        in_thread: bool = False,
    ) -> None:
        self.search = search
        self._in_thread = in_thread
        self.slots = slots
        self.trouble = trouble or SearchTrouble()
        self._pauses = pauses
        self._rng = default_rng(seed)
        self._asked = 0
        #: Configurations of trials that have not ended, and which of them are paused.
        self.open: dict[str, dict[str, Any]] = {}
        self.paused: dict[str, None] = {}
        #: Every answer: a configuration as JSON, "none", "finished" or "refused".
        self.answers: list[tuple[str, str]] = []
        self.finished = False
        #: Called after each event.
        self.after: Callable[[], None] = lambda: None
        self._sequence = self._events()

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The suggested configurations."""
        return [json.loads(text) for _, text in self.answers if text.startswith("{")]

    def run(self, events: int | None = None) -> None:
        """Run for a number of events, or to the end.

        Parameters
        ----------
        events : int, optional
            The number; by default until there are no more suggestions and all trials have ended.
        """
        count = 0
        while (events is None or count < events) and next(self._sequence, None) is not None:
            self.after()
            count += 1

    def _events(self) -> Iterator[str]:
        while self.open or not self.finished:
            free = self.slots - len(self.open) + len(self.paused)
            if free > 0 and not self.finished and (not self.open or self._rng.random() < 0.6):
                yield self._ask()
                continue
            yield self._do(list(self.open)[int(self._rng.integers(len(self.open)))])

    def _ask(self) -> str:
        trial_id = f"t{self._asked:03d}"
        self._asked += 1
        is_idle = not self.open
        answer = self._answer(trial_id)
        self.finished = answer.finished
        if answer.config is None:
            says = "finished" if answer.finished else "none"
            # Without an unfinished trial nothing can happen that would make it suggest again.
            assert answer.finished or not is_idle, "no suggestion although no trial is unfinished"
            self.answers.append((trial_id, says))
            if says == "none":
                self._do(next(iter(self.open)))
            return "none"
        self.answers.append((trial_id, json.dumps(answer.config)))
        if self._rng.random() < self.trouble.refused:
            self.search.adopt(trial_id, None)
            self.answers.append((trial_id, "refused"))
            return "refuse"
        self.open[trial_id] = dict(answer.config)
        # User code may change its configuration; the searcher must not depend on it.
        answer.config.clear()
        return "suggest"

    def _answer(self, trial_id: str) -> Suggestion:
        if not self._in_thread:
            return self.search.next_trial(trial_id)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self.search.next_trial, trial_id).result()

    def _do(self, trial_id: str) -> str:
        what = self._rng.random()
        if trial_id in self.paused:
            del self.paused[trial_id]
            if what < 0.7:
                self.search.on_trial_unpause(trial_id)
                return "unpause"
        elif what < 0.3:
            self.search.on_trial_result(trial_id, self._result(trial_id))
            return "result"
        elif what < 0.5 and self._pauses and len(self.paused) + 1 < len(self.open):
            self.paused[trial_id] = None
            self.search.on_trial_pause(trial_id)
            return "pause"
        self._end(trial_id)
        return "end"

    def _end(self, trial_id: str) -> None:
        failed = bool(self._rng.random() < self.trouble.failures)
        silent = self._rng.random() < self.trouble.silent
        result = None if silent else self._result(trial_id)
        del self.open[trial_id]
        self.search.on_trial_complete(trial_id, result, error=failed)

    def _result(self, trial_id: str) -> Mapping[str, Any]:
        row = {"training_iteration": 1, "trial_id": trial_id}
        if self._rng.random() < self.trouble.undefined:
            return {**row, **_UNDEFINED[int(self._rng.integers(len(_UNDEFINED)))]}
        value = float(self._rng.random())
        return {**row, "loss": value, "accuracy": 1 - value**2}
