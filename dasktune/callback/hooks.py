"""Translate events into calls of the callbacks, and collect those missed during a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from dasktune.experiment import ExperimentMachine, HandleResult
from dasktune.trial import events
from dasktune.trial.actions import FinishTrial
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import ExperimentEvent
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial

#: Events after which a trial may start again.
_SETBACKS = events.TrialFailed | events.TrialLost | events.RestoreFailed


@dataclass(frozen=True, slots=True)
class Hook:
    """A pending call of a method of the callbacks.

    Parameters
    ----------
    name : str
        Name of the method.
    trial : Trial
        The trial that the method is called with.
    result : dict, optional
        The reported result.
    checkpoint : CheckpointRecord, optional
        The saved checkpoint.
    """

    name: str
    trial: Trial
    result: dict[str, Any] | None = None
    checkpoint: CheckpointRecord | None = None

    def kept(self) -> Hook:
        """Return the call with a copy of the trial, which later events do not change."""
        past = copy(self.trial)
        past.history = History(past.history[-1:])
        past.checkpoints = past.checkpoints[-1:]
        past.errors = past.errors[-1:]
        return replace(self, trial=past)


def hooks_of(
    event: events.ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine
) -> Iterator[Hook]:
    """Yield the hooks to call for an event, in order.

    Parameters
    ----------
    event : ExperimentEvent
        The event.
    handled : HandleResult
        The experiment's answer to the event.
    experiment : ExperimentMachine
        The experiment after the event.
    """
    trials = experiment.trials
    finished = [action.trial_id for action in handled.actions if isinstance(action, FinishTrial)]
    if isinstance(event, events.TrialEvent):
        trial = trials[event.trial_id]
        if handled.is_current:
            yield from _of_trial(event, trial, is_new=handled.is_new_result)
            if trial.status.is_final and trial.trial_id not in finished:
                yield _end_of(trial)
    elif isinstance(event, events.CheckpointStored):
        yield from _saved(trials[event.trial_id], event.checkpoint)
    for trial_id in finished:
        yield _end_of(trials[trial_id])


def _of_trial(event: events.TrialEvent, trial: Trial, *, is_new: bool) -> Iterator[Hook]:
    if isinstance(event, events.ResultReported):
        if is_new:
            yield Hook("on_trial_result", trial, result=event.metrics)
        if event.checkpoint is not None:
            yield from _saved(trial, event.checkpoint)
    elif isinstance(event, events.CheckpointCommitted):
        yield from _saved(trial, event.checkpoint)
    elif isinstance(event, events.TrialStarted):
        yield Hook("on_trial_start", trial)
        if trial.restore_point is not None:
            yield Hook("on_trial_restore", trial)
    elif isinstance(event, _SETBACKS) and trial.status is TrialStatus.PENDING:
        yield Hook("on_trial_recover", trial)


def _saved(trial: Trial, checkpoint: CheckpointRecord) -> Iterator[Hook]:
    # A checkpoint in memory has no files, and may never get any.
    if checkpoint.kind is CheckpointKind.PERSISTENT:
        yield Hook("on_checkpoint", trial, checkpoint=checkpoint)
        yield Hook("on_trial_save", trial)


def _end_of(trial: Trial) -> Hook:
    failed = trial.status is TrialStatus.ERROR
    return Hook("on_trial_error" if failed else "on_trial_complete", trial)


class MissedEvents:
    """Collects the hooks to call for replayed events, while a journal is replayed.

    The hooks are not called during the replay: it may restart from an older snapshot, and the user
    may only look at the restored experiment.

    Parameters
    ----------
    callbacks : sequence or None
        The callbacks of the session; without any, nothing is collected.

    Attributes
    ----------
    state : mapping or None
        The callbacks' state in the snapshot; None without a snapshot.
    hooks : list of Hook
        The hooks for all events since the snapshot, oldest first.
    """

    def __init__(self, callbacks: Sequence[Any] | None) -> None:
        self._is_wanted = bool(callbacks)
        self.state: Mapping[str, Any] | None = None
        self.hooks: list[Hook] = []

    def reset(self, state: Mapping[str, Any] | None) -> None:
        """Discard the collected hooks, and start from a snapshot.

        Parameters
        ----------
        state : mapping or None
            The experiment's state in the snapshot; None to begin without a snapshot.
        """
        self.state = None if state is None else state.get("callbacks", {})
        self.hooks = []

    @property
    def is_end_missed(self) -> bool:
        """Whether the callbacks may have missed the end of the experiment, if it has ended.

        A driver records the end in its snapshot after the callbacks were called. If it dies in
        between, the next driver calls them again.
        """
        return self._is_wanted and not (self.state or {}).get("ended", False)

    def on_event(self, event: ExperimentEvent, handled: HandleResult, experiment: ExperimentMachine) -> None:
        """Collect the hooks for an event that the experiment has handled."""
        if self._is_wanted:
            self.hooks += [hook.kept() for hook in hooks_of(event, handled, experiment)]
