"""Tells others what the journal is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dasktune.experiment import Experiment
from dasktune.runner.records import journal_record
from dasktune.trial.actions import Action
from dasktune.trial.events import ExperimentEvent, TimePassed

__all__ = ["RecordingObserver"]


class RecordingObserver:
    """Watches an experiment, and hands on the records that its journal gets.

    Parameters
    ----------
    put : callable
        Takes a record, which must not be changed.
    pass_time : callable
        Takes the runner's time, in seconds.
    """

    def __init__(
        self, put: Callable[[dict[str, Any]], None], pass_time: Callable[[float], None]
    ) -> None:
        self._put, self._pass_time = put, pass_time

    def on_event(
        self, event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
    ) -> None:
        """Hand on what the journal is told of an event."""
        self._pass_time(event.time)
        if actions or not isinstance(event, TimePassed):
            trial = experiment.trials.get(getattr(event, "trial_id", ""))
            self._put(journal_record(event, actions, trial))

    def on_end(self, experiment: Experiment) -> None:
        """Do nothing: the records tell the end."""
