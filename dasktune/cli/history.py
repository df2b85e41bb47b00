"""What the trials of an experiment reported of one metric, row by row, as the journal tells it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from dasktune.trial.metrics import lookup

__all__ = ["MetricHistory"]

#: Events with which trials come.
_BRINGING: Final = ("Suggested", "TrialAddRequested")


class MetricHistory:
    """Collects what is needed to compare trials as :meth:`ResultGrid.get_best_result` does.

    A chronicle thins its curves out, and does not tell NaN from nothing.

    Parameters
    ----------
    metric : str
        What to compare; nested names are joined by ``/``.

    Examples
    --------
    >>> history = MetricHistory("loss")
    >>> history.take({"event": "ResultReported", "trial_id": "a",
    ...               "metrics": {"loss": 0.5, "training_iteration": 1}})
    >>> history.rows("a")
    [{'loss': 0.5}]
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        #: Values by ``training_iteration``, ascending, for each trial.
        self._values: dict[str, dict[int, Any]] = {}
        self._configs: dict[str, Any] = {}

    def rows(self, trial_id: str) -> list[dict[str, Any]]:
        """Return a trial's results as far as the metric goes, oldest first."""
        return [{self._metric: value} for value in self._values.get(trial_id, {}).values()]

    def config(self, trial_id: str) -> Any:
        """Return the configuration that a trial had last, nested as it was given."""
        return self._configs.get(trial_id)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in the next record of the journal; one that makes no sense is skipped."""
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "ResultReported":
            metrics = record["metrics"]
            self._add(record["trial_id"], int(metrics["training_iteration"]), metrics)
        elif record["event"] in _BRINGING and record["config"] is not None:
            self._configs.setdefault(record["trial_id"], record["config"])
        for action in record.get("actions", ()):
            if action["do"] == "ReopenTrial" and action["fresh"]:
                self._values.pop(action["trial_id"], None)
            elif action["do"] == "ExploitTrial":
                self._configs[action["trial_id"]] = action["config"]
                if action["checkpoint"] is not None:
                    self._cut(action["trial_id"], int(action["checkpoint"]["iteration"]))

    def _add(self, trial_id: str, iteration: int, metrics: Mapping[str, Any]) -> None:
        values = self._values.setdefault(trial_id, {})
        # What is computed again replaces what was there.
        if not values or iteration in values or iteration > next(reversed(values)):
            values[iteration] = lookup(metrics, self._metric)

    def _cut(self, trial_id: str, iteration: int) -> None:
        values = self._values.get(trial_id, {})
        while values and next(reversed(values)) > iteration:
            values.popitem()
