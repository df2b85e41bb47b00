"""Hold a searcher back until it has seen how its earlier suggestions did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dasktune.errors import check
from dasktune.search.suggest import EvaluatedPoint, Finished, Searcher
from dasktune.trial.metrics import Metric, Modes

__all__ = ["ConcurrencyLimiter"]


class ConcurrencyLimiter(Searcher):
    """Let a searcher have at most so many unfinished trials.

    A trial that waits at a rung of `HyperBandScheduler` or its like counts only when it goes on: it
    waits for trials that are still to be suggested. A batch is not made larger for it.

    A searcher that can limit itself (:meth:`Searcher.set_max_concurrency`) is left to do so.

    Parameters
    ----------
    searcher : Searcher
        Who suggests. `BasicVariantGenerator` is none, and learns nothing that it would have to wait
        for; limit it with ``TuneConfig(max_concurrent_trials=...)``.
    max_concurrent : int
        Most trials that may be unfinished at a time, at least 1.
    batch : bool, default=False
        Suggest in batches: tell the searcher what came of one, all at once, when its last trial has
        ended, and ask for the next only then.

    Raises
    ------
    ConfigError
        If `searcher` is no searcher or is limited already, or `max_concurrent` is below 1.

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
        plain = isinstance(given, Searcher) and not isinstance(given, ConcurrencyLimiter)
        check(plain, "searcher", "a Searcher that is not limited yet", searcher)
        whole = type(max_concurrent) is int
        check(whole and max_concurrent >= 1, "max_concurrent", "an int, at least 1", max_concurrent)
        super().__init__(metric=searcher.metric, mode=searcher.mode)
        self.searcher = searcher
        self.answers_at_once = searcher.answers_at_once
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._limits_itself = searcher.set_max_concurrency(max_concurrent)
        #: Suggested and not yet told to the searcher as ended, in order. A slot each.
        self._open: dict[str, None] = {}
        #: Those of them that are paused, and take no slot.
        self._paused: dict[str, None] = {}
        #: What a batch still holds back: ``{trial_id: (result, error)}``.
        self._held: dict[str, tuple[Mapping[str, Any] | None, bool]] = {}
        #: Suggestions that may still be asked for; None if there is no end.
        self._left: int | None = None
        #: Whether the batch is as large as it will get.
        self._batch_is_full = False

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass it on to the searcher, and learn how many suggestions will be asked for."""
        taken = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        num_samples = spec.get("num_samples", -1)
        self._left = num_samples if num_samples >= 0 else None
        return taken

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Agree to the limit that it has.

        Raises
        ------
        ConfigError
            If it is asked for another one.
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
        """Ask the searcher, unless all slots are taken or a batch is not over yet."""
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
        # A batch that the searcher, or the end of the samples, cuts short must not wait for more.
        cut_short = not isinstance(suggestion, dict) or self._left == 0
        self._batch_is_full = cut_short or len(self._open) >= self.max_concurrent
        if self._deliver_batch() and suggestion is None:
            return self.suggest(trial_id)  # it has just learnt what it may have waited for
        return suggestion

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Give the trial a slot if it has a configuration, and tell the searcher."""
        if config is None and trial_id in self._open:
            del self._open[trial_id]
            self._left = None if self._left is None else self._left + 1
            # A batch that it filled up has a place again.
            self._batch_is_full = False
        elif config is not None and not self._limits_itself and trial_id not in self._open:
            self._open[trial_id] = None
            self._left = None if self._left is None else self._left - 1
            full = self._left == 0 or len(self._open) >= self.max_concurrent
            self._batch_is_full = self._batch_is_full or (self.batch and full)
        self.searcher.adopt(trial_id, config)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass it on."""
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Free the trial's slot, or hold the news back until its batch is over."""
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
        """Free the trial's slot for the time being, and pass it on."""
        if trial_id in self._open:
            self._paused[trial_id] = None
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Take a slot for the trial again, though none may be free, and pass it on."""
        self._paused.pop(trial_id, None)
        self.searcher.on_unpause(trial_id)

    def _deliver_batch(self) -> bool:
        over = self._batch_is_full and len(self._held) == len(self._open)
        if over:
            self._batch_is_full = False
            self._deliver()
        return over

    def _deliver(self) -> None:
        held, self._held = self._held, {}
        for trial_id in held:
            # Before the searcher hears of it: should it raise, its slot is free all the same.
            del self._open[trial_id]
        for trial_id, (result, error) in held.items():
            self.searcher.on_trial_complete(trial_id, result, error)

    def learn_point(self, point: EvaluatedPoint) -> None:
        """Pass it on."""
        point.add_to(self.searcher)

    def state_dict(self) -> dict[str, Any]:
        """Return the slots that are taken, what is held back, and the searcher's own state."""
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
        """Take back what :meth:`state_dict` gave."""
        self._open = dict.fromkeys(state["open"])
        self._paused = dict.fromkeys(state["paused"])
        self._held = {name: (result, error) for name, (result, error) in state["held"].items()}
        self._left = state["left"]
        self._batch_is_full = state["batch_is_full"]
        self.searcher.load_state_dict(state["searcher"])
