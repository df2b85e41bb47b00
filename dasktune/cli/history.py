"""All values of one metric that trials reported, read from the journal."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dasktune.errors import StorageError
from dasktune.trial import events
from dasktune.trial.actions import ExploitTrial, ReopenTrial
from dasktune.trial.journal_codec import decode_actions, event_type
from dasktune.trial.metrics import lookup


class MetricHistory:
    """Collects the values that :meth:`ResultGrid.get_best_result` compares.

    A projection cannot be used: its curves leave out points, and treat NaN as missing.

    Parameters
    ----------
    metric : str
        The metric; nested names are joined by ``/``.

    Examples
    --------
    >>> history = MetricHistory("loss")
    >>> history.apply({"event": "ResultReported", "trial_id": "a",
    ...                "metrics": {"loss": 0.5, "training_iteration": 1}})
    >>> history.rows("a")
    [{'loss': 0.5}]
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        #: Values by ``training_iteration``, ascending, for each trial.
        self._values: dict[str, dict[int, Any]] = {}
        self._configs: dict[str, Any] = {}

    def rows(self, trial_id: str) -> list[dict[str, Any]]:
        """Return a trial's results with this metric only, oldest first."""
        return [{self._metric: value} for value in self._values.get(trial_id, {}).values()]

    def config(self, trial_id: str) -> Any:
        """Return a trial's last configuration, nested as it was given."""
        return self._configs.get(trial_id)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply the next record of the journal; skip a malformed one."""
        with suppress(StorageError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        kind = event_type(record)
        if kind is events.ResultReported:
            metrics = record["metrics"]
            self._add(record["trial_id"], int(metrics["training_iteration"]), metrics)
        elif kind in (events.Suggested, events.TrialAddRequested) and record["config"] is not None:
            self._configs.setdefault(record["trial_id"], record["config"])
        for action in decode_actions(record):
            if isinstance(action, ReopenTrial) and action.fresh:
                self._values.pop(action.trial_id, None)
            elif isinstance(action, ExploitTrial):
                self._configs[action.trial_id] = action.config
                if action.checkpoint is not None:
                    self._truncate(action.trial_id, action.checkpoint.iteration)

    def _add(self, trial_id: str, iteration: int, metrics: Mapping[str, Any]) -> None:
        values = self._values.setdefault(trial_id, {})
        # A result that is computed again replaces the earlier one.
        if not values or iteration in values or iteration > next(reversed(values)):
            values[iteration] = lookup(metrics, self._metric)

    def _truncate(self, trial_id: str, iteration: int) -> None:
        values = self._values.get(trial_id, {})
        while values and next(reversed(values)) > iteration:
            values.popitem()
