"""Feeds the progress line from the events of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dasktune.experiment import Experiment
from dasktune.progress.line import ProgressLine
from dasktune.trial.actions import Action
from dasktune.trial.events import ExperimentEvent, ResultReported
from dasktune.trial.metrics import score

__all__ = ["ProgressObserver"]


class ProgressObserver:
    """Watches an experiment and tells a :class:`ProgressLine` how far it is.

    An event costs O(1); the first one O(results), for a resumed experiment has some already.

    Parameters
    ----------
    line : ProgressLine
        Shows it. Its metric and mode are those of the experiment.
    """

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._started = False
        self._now = 0.0
        self._results = 0
        #: Higher is better, whatever the mode; None before the first.
        self._best: tuple[float, str] | None = None

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """See an event after it was handled."""
        if not self._started:
            self._started = True
            for trial in experiment.trials.values():
                for row in trial.history:
                    self._see(trial.trial_id, row, experiment)
        elif isinstance(event, ResultReported):
            self._see(event.trial_id, event.metrics, experiment)
        self._now = event.time
        if self._line.is_due(event.time):
            self._tell(experiment)

    def on_end(self, experiment: Experiment) -> None:
        """Show how it ended."""
        if self._started:
            self._tell(experiment)
        self._line.finish()

    def _see(self, trial_id: str, row: Mapping[str, Any], experiment: Experiment) -> None:
        self._results += 1
        metric, mode = experiment.settings.metric, experiment.settings.mode
        if metric is None or mode is None:
            return
        points = score(row, metric, mode)
        if points is not None and (self._best is None or points > self._best[0]):
            self._best = points, trial_id

    def _tell(self, experiment: Experiment) -> None:
        value, trial_id = self._best or (None, "")
        if value is not None and experiment.settings.mode == "min":
            value = -value
        self._line.update(
            experiment.roster.public_counts(),
            now=self._now,
            results=self._results,
            best_value=value,
            best_trial_id=trial_id,
        )
