"""Which hooks an event comes to; the one place that knows, for the living and for a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from dasktune.experiment import Experiment
from dasktune.trial.actions import Action, FinishTrial
from dasktune.trial.checkpoint import CheckpointKind, CheckpointRecord
from dasktune.trial.events import (
    CheckpointCommitted,
    CheckpointStored,
    ExperimentEvent,
    ResultReported,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialStarted,
)
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

__all__ = ["Hook", "hooks_of"]


@dataclass(frozen=True, slots=True)
class Hook:
    """A method of callbacks that is to be called.

    Parameters
    ----------
    name : str
        The method's.
    trial : Trial
        Whom it is about.
    result : dict, optional
        What it has reported.
    checkpoint : CheckpointRecord, optional
        What it has saved.
    """

    name: str
    trial: Trial
    result: dict[str, Any] | None = None
    checkpoint: CheckpointRecord | None = None

    def kept(self) -> Hook:
        """Return it with a copy of the trial, which what happens next does not change."""
        past = copy(self.trial)
        past.history = past.history[-1:]
        past.checkpoints = past.checkpoints[-1:]
        past.errors = past.errors[-1:]
        return replace(self, trial=past)


def hooks_of(
    event: ExperimentEvent, actions: Sequence[Action], experiment: Experiment
) -> Iterator[Hook]:
    """Yield what callbacks are to hear of an event.

    Parameters
    ----------
    event : ExperimentEvent
        It was handled just now.
    actions : sequence of Action
        What was decided about it.
    experiment : Experiment
        After the event.
    """
    trials = experiment.trials
    finished = [action.trial_id for action in actions if isinstance(action, FinishTrial)]
    if isinstance(event, TrialEvent):
        trial = trials[event.trial_id]
        if experiment.heeded:
            yield from _of_trial(event, trial, is_new=experiment.brought_result)
            if trial.status.is_final and trial.trial_id not in finished:
                yield _end_of(trial)
    elif isinstance(event, CheckpointStored):
        yield from _saved(trials[event.trial_id], event.checkpoint)
    for trial_id in finished:
        yield _end_of(trials[trial_id])


def _of_trial(event: TrialEvent, trial: Trial, *, is_new: bool) -> Iterator[Hook]:
    if isinstance(event, ResultReported):
        if is_new:
            yield Hook("on_trial_result", trial, result=event.metrics)
        if event.checkpoint is not None:
            yield from _saved(trial, event.checkpoint)
    elif isinstance(event, CheckpointCommitted):
        yield from _saved(trial, event.checkpoint)
    elif isinstance(event, TrialStarted):
        yield Hook("on_trial_start", trial)
        if trial.restore_point is not None:
            yield Hook("on_trial_restore", trial)
    elif isinstance(event, TrialFailed | TrialLost) and trial.status is TrialStatus.PENDING:
        yield Hook("on_trial_recover", trial)


def _saved(trial: Trial, checkpoint: CheckpointRecord) -> Iterator[Hook]:
    # One in memory has no files, and may never get any.
    if checkpoint.kind is CheckpointKind.PERSISTENT:
        yield Hook("on_checkpoint", trial, checkpoint=checkpoint)
        yield Hook("on_trial_save", trial)


def _end_of(trial: Trial) -> Hook:
    failed = trial.status is TrialStatus.ERROR
    return Hook("on_trial_error" if failed else "on_trial_complete", trial)
