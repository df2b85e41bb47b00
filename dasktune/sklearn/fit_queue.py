"""The fits that a search has named, one trial each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dasktune.search.searcher import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.sklearn.evaluation import Fit

__all__ = ["FitQueue"]


class FitQueue(SearchAlgorithm):
    """Gives out fits in their order, and keeps what came of them.

    A trial's configuration is only its fit's number. The fit itself stays here, where the driver
    needs it, and goes to the worker when its trial begins.

    Examples
    --------
    >>> queue = FitQueue()
    >>> queue.add([Fit(params={"C": 1.0}, candidate=0, n_candidates=1, split=0)])
    >>> queue.next_trial("t0").config, queue.next_trial("t1").config
    ({'fit': 0}, None)
    >>> queue.on_trial_complete("t0", {"test_scores": 0.5})
    >>> queue.unfinished, queue.results
    (0, {0: {'test_scores': 0.5}})
    """

    #: A fit costs nothing before it begins, and depends on no result.
    lookahead = 64
    answers_at_once = True

    def __init__(self) -> None:
        self._fits: list[Fit] = []
        self._waiting: deque[int] = deque()
        self._numbers: dict[str, int] = {}
        self._closed = False
        self._ended = 0
        #: What each fit has come to, by number.
        self.results: dict[int, Mapping[str, Any]] = {}
        #: Trials that have failed, by the number of their fit.
        self.failed: dict[int, str] = {}

    def setup(self, spec: SearchSpec) -> None:
        """Take the task: there is nothing to know."""

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be: nobody knows until it is closed."""
        return len(self._fits) if self._closed else None

    @property
    def unfinished(self) -> int:
        """How many of the fits have not come to their end."""
        return len(self._fits) - self._ended

    def __getitem__(self, number: int) -> Fit:
        return self._fits[number]

    def __len__(self) -> int:
        return len(self._fits)

    def add(self, fits: Iterable[Fit]) -> None:
        """Add fits at the end."""
        for fit in fits:
            self._waiting.append(len(self._fits))
            self._fits.append(fit)

    def excuse(self, number: int, result: Mapping[str, Any]) -> None:
        """Let a fit that has failed count as one that came to this result."""
        del self.failed[number]
        self.results[number] = result

    def close(self) -> None:
        """Say that there will be no more."""
        self._closed = True

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the number of the next fit."""
        if not self._waiting:
            return Suggestion(config=None, finished=self._closed)
        number = self._numbers[trial_id] = self._waiting.popleft()
        return Suggestion(config={"fit": number}, tag=f"fit={number}")

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Keep what has come of a fit."""
        number = self._numbers.pop(trial_id)
        self._ended += 1
        if error or result is None:
            self.failed[number] = trial_id
        else:
            self.results[number] = result
