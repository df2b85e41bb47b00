"""The queue of fits that a search has requested; each becomes one trial."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.sklearn.fits.fit_and_score import Fit


class FitQueue(SearchAlgorithm):
    """Suggests fits in their order, and keeps their results.

    A trial's configuration is only the number of its fit. The fit itself stays on the driver, and
    is sent to the worker when its trial starts.

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

    #: Suggestions are cheap and depend on no result, so the runner may ask for many in advance.
    lookahead = 64
    answers_at_once = True

    def __init__(self) -> None:
        self._fits: list[Fit] = []
        self._pending: deque[int] = deque()
        self._numbers: dict[str, int] = {}
        self._closed = False
        self._ended = 0
        #: {number of the fit: its result}
        self.results: dict[int, Mapping[str, Any]] = {}
        #: {number of the fit: id of its failed trial}
        self.failed: dict[int, str] = {}

    def setup(self, spec: SearchSpec) -> None:
        """Do nothing: :meth:`add` gives the fits."""

    @property
    def total_samples(self) -> int | None:
        """Total number of trials; None until the queue is closed."""
        return len(self._fits) if self._closed else None

    @property
    def unfinished(self) -> int:
        """The number of fits that have not ended."""
        return len(self._fits) - self._ended

    def __getitem__(self, number: int) -> Fit:
        return self._fits[number]

    def __len__(self) -> int:
        return len(self._fits)

    def add(self, fits: Iterable[Fit]) -> None:
        """Add fits at the end."""
        for fit in fits:
            self._pending.append(len(self._fits))
            self._fits.append(fit)

    def set_failed(self, number: int, result: Mapping[str, Any]) -> None:
        """Replace the failure of a fit by a result."""
        del self.failed[number]
        self.results[number] = result

    def close(self) -> None:
        """Declare that no further fits will be added."""
        self._closed = True

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the number of the next fit."""
        if not self._pending:
            return Suggestion(config=None, finished=self._closed)
        number = self._numbers[trial_id] = self._pending.popleft()
        return Suggestion(config={"fit": number}, tag=f"fit={number}")

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Keep the result of a fit, or the id of the trial if it failed."""
        number = self._numbers.pop(trial_id)
        self._ended += 1
        if error or result is None:
            self.failed[number] = trial_id
        else:
            self.results[number] = result
