"""An experiment as a search algorithm sees it, without trials: the motor of `SearcherContract`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf, nan
from typing import Any, Final

from numpy.random import default_rng

from dasktune.search.searcher import SearchAlgorithm, Suggestion

__all__ = ["SearchDrill", "SearchTrouble"]

#: Metrics that are no numbers to learn from; a key that is missing stands for itself.
_UNDEFINED: Final[tuple[dict[str, Any], ...]] = (
    {"loss": nan, "accuracy": nan},
    {"loss": inf, "accuracy": -inf},
    {"loss": -inf, "accuracy": 0.5},
    {"loss": "low", "accuracy": None},
    {},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTrouble:
    """What goes wrong, as shares of all ends and answers between 0 and 1.

    Parameters
    ----------
    failures : float, default=0
        Ends that are failures.
    silent : float, default=0
        Ends of trials that never reported.
    undefined : float, default=0
        Results without a number to learn from.
    refused : float, default=0
        Answers that an experiment, as it is resumed, had not been given then.
    """

    failures: float = 0.0
    silent: float = 0.0
    undefined: float = 0.0
    refused: float = 0.0


class SearchDrill:
    """Ask for configurations, and report, pause and end their trials in an order of its own.

    Parameters
    ----------
    search : SearchAlgorithm
        Who is asked; it has been set up.
    slots : int
        Most trials that are unfinished at a time.
    seed : int
        Of the order of events and of what goes wrong, not of the search.
    pauses : bool, default=False
        Whether trials wait for others at times.
    trouble : SearchTrouble, optional
        What goes wrong.
    in_thread : bool, default=False
        Whether each question is asked in a thread of its own, as on a cluster.
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
        #: Every answer as JSON: a configuration, "none" or "finished".
        self.answers: list[tuple[str, str]] = []
        self.finished = False
        #: Called after each event.
        self.after: Callable[[], None] = lambda: None
        self._motor = self._events()

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configurations that were suggested."""
        return [json.loads(text) for _, text in self.answers if text.startswith("{")]

    def run(self, events: int | None = None) -> None:
        """Go on for some events, or to the end.

        Parameters
        ----------
        events : int, optional
            How many; by default until there are no more suggestions and all trials have ended.
        """
        count = 0
        while (events is None or count < events) and next(self._motor, None) is not None:
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
        nobody = not self.open
        answer = self._answer(trial_id)
        self.finished = answer.finished
        if answer.config is None:
            says = "finished" if answer.finished else "none"
            # It waits for a trial that has ended long ago: nothing will ever happen again.
            assert answer.finished or not nobody, "it has nothing unfinished, and suggests nothing"
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
        # What user code does to its configuration is none of the searcher's business.
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
