"""`ConcurrencyLimiter`, a wrapper that limits a searcher's unfinished trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from dasktune.errors import check
from dasktune.search.searcher import EvaluatedPoint, Finished, Searcher
from dasktune.trial.metrics import Metric, Modes


class ConcurrencyLimiter(Searcher):
    """Limits the number of a searcher's unfinished trials.

    A trial that is paused at a rung, for example of `HyperBandScheduler`, does not count until it
    resumes: it may be waiting for trials that are not suggested yet. A batch does not grow when one
    of its trials is paused.

    A searcher that limits itself (:meth:`Searcher.set_max_concurrency`) is not limited again.

    Parameters
    ----------
    searcher : Searcher
        The searcher to limit. `BasicVariantGenerator` is not a Searcher; limit it with
        ``TuneConfig(max_concurrent_trials=...)``.
    max_concurrent : int
        The largest number of unfinished trials, at least 1.
    batch : bool, default=False
        Whether to suggest in batches. The searcher then gets all results of a batch at once, after
        the batch's last trial has ended, and is only then asked for the next batch.

    Raises
    ------
    ConfigError
        If `searcher` is not a Searcher or is limited already, or `max_concurrent` is below 1.

    Examples
    --------
    >>> class Ones(Searcher):
    ...     def suggest(self, trial_id):
    ...         return {"x": 1}
    >>> limiter = ConcurrencyLimiter(Ones(), max_concurrent=1)
    >>> limiter.suggest("a"), limiter.suggest("b")
    ({'x': 1}, None)
    >>> limiter.on_trial_complete("a", {"loss": 0.5})
    >>> limiter.suggest("b")
    {'x': 1}
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        given: object = searcher
        is_unlimited = isinstance(given, Searcher) and not isinstance(given, ConcurrencyLimiter)
        check(is_unlimited, "searcher", "a Searcher that is not limited yet", searcher)
        is_int = type(max_concurrent) is int
        check(is_int and max_concurrent >= 1, "max_concurrent", "an int, at least 1", max_concurrent)
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher = searcher
        self.answers_at_once = searcher.answers_at_once
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._limits_itself = searcher.set_max_concurrency(max_concurrent)
        #: Suggested trials whose end the searcher does not know yet, in order of suggestion.
        self._open: dict[str, None] = {}
        #: The trials in `_open` that are paused. The limit does not count them.
        self._paused: dict[str, None] = {}
        #: Results that the searcher gets at the end of the batch: ``{trial_id: (result, error)}``.
        self._held: dict[str, tuple[Mapping[str, Any] | None, bool]] = {}
        #: The number of suggestions still to make; None if there is no limit.
        self._left: int | None = None
        #: Whether the batch gets no more trials.
        self._batch_is_full = False

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass the properties to the searcher, and store the number of suggestions to make."""
        searches_config = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        # Trials of an earlier experiment, which `restore` has read: they never end in this one.
        self._open, self._paused, self._held, self._batch_is_full = {}, {}, {}, False
        num_samples = spec.get("num_samples", -1)
        self._left = num_samples if num_samples >= 0 else None
        return searches_config

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Return True if the limit is equal to that of this wrapper.

        Raises
        ------
        ConfigError
            If the two limits differ.
        """
        check(
            max_concurrent == self.max_concurrent,
            "TuneConfig(max_concurrent_trials=...)",
            f"equal to ConcurrencyLimiter(max_concurrent={self.max_concurrent})",
            max_concurrent,
            "Set it in one place.",
        )
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | Literal[Finished.FINISHED] | None:
        """Return the searcher's suggestion; None at the limit, or if a full batch still runs."""
        if self._limits_itself:
            return self.searcher.suggest(trial_id)
        if self._batch_is_full or len(self._open) - len(self._paused) >= self.max_concurrent:
            return None
        suggestion = self.searcher.suggest(trial_id)
        if isinstance(suggestion, dict):
            self._open[trial_id] = None
            self._left = None if self._left is None else self._left - 1
        if not self.batch or not self._open:
            return suggestion
        # A smaller batch is full, too, if the searcher has no suggestion or all samples are made.
        cut_short = not isinstance(suggestion, dict) or self._left == 0
        self._batch_is_full = cut_short or len(self._open) >= self.max_concurrent
        if self._deliver_batch() and suggestion is None:
            return self.suggest(trial_id)  # the searcher may have waited for the batch's results
        return suggestion

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Count the trial if it has a configuration, and notify the searcher."""
        if config is None and trial_id in self._open:
            del self._open[trial_id]
            self._left = None if self._left is None else self._left + 1
            # The trial may have been the one that filled the batch.
            self._batch_is_full = False
        elif config is not None and not self._limits_itself and trial_id not in self._open:
            self._open[trial_id] = None
            self._left = None if self._left is None else self._left - 1
            full = self._left == 0 or len(self._open) >= self.max_concurrent
            self._batch_is_full = self._batch_is_full or (self.batch and full)
        self.searcher.adopt(trial_id, config)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass the result to the searcher."""
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass the trial's end to the searcher; with `batch`, at the end of the batch."""
        if self._limits_itself:
            self.searcher.on_trial_complete(trial_id, result, error)
        elif trial_id in self._open:
            self._paused.pop(trial_id, None)
            self._held[trial_id] = (result, error)
            if self.batch:
                self._deliver_batch()
            else:
                self._deliver()

    def on_pause(self, trial_id: str) -> None:
        """Exclude the trial from the limit until it resumes, and notify the searcher."""
        if trial_id in self._open:
            self._paused[trial_id] = None
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Count the trial again, even above the limit, and notify the searcher."""
        self._paused.pop(trial_id, None)
        self.searcher.on_unpause(trial_id)

    def _deliver_batch(self) -> bool:
        """If all trials of a full batch have ended, deliver their results and return True."""
        is_over = self._batch_is_full and len(self._held) == len(self._open)
        if is_over:
            self._batch_is_full = False
            self._deliver()
        return is_over

    def _deliver(self) -> None:
        held, self._held = self._held, {}
        for trial_id in held:
            # This comes first, so that no trial counts any more even if the searcher raises.
            del self._open[trial_id]
        for trial_id, (result, error) in held.items():
            self.searcher.on_trial_complete(trial_id, result, error)

    def read_past(self, read: Callable[[str], Any]) -> None:
        """Let the searcher read its earlier experiments."""
        self.searcher.read_past(read)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Pass the point to the searcher."""
        point.add_to(self.searcher)

    def state_dict(self) -> dict[str, Any]:
        """Return the open trials, the results held back, and the searcher's own state."""
        held = {trial_id: [result, error] for trial_id, (result, error) in self._held.items()}
        return {
            "open": list(self._open),
            "paused": list(self._paused),
            "held": held,
            "left": self._left,
            "batch_is_full": self._batch_is_full,
            "searcher": self.searcher.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._load_own(state)
        self.searcher.load_state_dict(state["searcher"])

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        self._load_own(state)
        self.searcher._restore_state(state["searcher"])

    def _load_own(self, state: Mapping[str, Any]) -> None:
        self._open = dict.fromkeys(state["open"])
        self._paused = dict.fromkeys(state["paused"])
        self._held = {name: (result, error) for name, (result, error) in state["held"].items()}
        self._left = state["left"]
        self._batch_is_full = state["batch_is_full"]
