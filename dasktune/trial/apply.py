"""Apply events and actions to a trial: every change that follows from them without a decision.

The experiment's state machine applies an event, decides, and applies the actions that it decides
on. A reader applies the same events and actions from the records of the journal, so both have the
same trial. Which checkpoints a trial may still resume from depends on other trials and on settings:
the state machine counts references, a reader keeps what no action has deleted.
"""

from __future__ import annotations

from dasktune.trial import actions, events
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TRANSITIONS, TrialStatus
from dasktune.trial.trial import NO_STATUS_LOG, Trial, new_status_log
from dasktune.trial.user_error import ErrorInfo

#: The tag of a trial that the user has added.
_ADDED = "added"


def new_trial(event: events.Suggested | events.TrialAddRequested, history: History) -> Trial:
    """Return the trial that an event with a configuration adds, with an empty history."""
    if type(event.config) is not dict:
        raise TypeError(f"config must be a dict, got {event.config!r:.80}")
    trial = Trial(
        trial_id=event.trial_id,
        config=event.config,
        # A replay refuses an event without resources; a reader shows what there is.
        resources=event.resources or PlacementGroupFactory([{}]),
        pickled=event.pickled,
        history=history,
    )
    if isinstance(event, events.TrialAddRequested):
        trial.tag, trial.added = _ADDED, True
    else:
        trial.tag, trial.name, trial.dirname = event.tag, event.name, event.dirname
    return trial


def is_current(trial: Trial, event: events.TrialEvent) -> bool:
    """Whether a worker's event belongs to its trial's current incarnation and is new.

    A worker repeats its messages until they are acknowledged, and the acknowledgement may be lost.
    Messages of an incarnation come in the order of their `seq`, so that one which is not above
    `last_seq` is a repetition. Events with ``seq=0`` are the driver's own and come once.
    """
    if event.incarnation != trial.incarnation or not trial.status.is_active:
        return False
    return event.seq > trial.last_seq or not event.seq


def apply_event(trial: Trial, event: events.TrialEvent) -> bool:
    """Apply a current event of a worker, and return whether it brought a new result.

    A checkpoint that the event brings is added before, by :func:`add_checkpoint`.
    """
    _change_status(trial, type(event), event.time)
    if event.seq > trial.last_seq:
        trial.last_seq = event.seq
    # Nearly all events are results.
    if isinstance(event, events.ResultReported):
        # A result that the worker sent before it received the pause of an exploit belongs to the
        # trial's former history: it is not recorded.
        is_new = trial.cloned_in < trial.incarnation and trial.history.record(event.metrics)
        if trial.shared_losses:
            _clear_suspicion(trial)
        if event.awaits and trial.status is TrialStatus.RUNNING:
            trial.awaiting_seq = event.seq
        return is_new
    match event:
        case events.CheckpointCommitted():
            _clear_suspicion(trial)
        case events.TrialStarted():
            trial.worker = event.worker
            trial.started_at = event.time if trial.started_at is None else trial.started_at
        case events.TrialFailed():
            trial.errors.append(event.error)
            trial.failures += 1
            if trial.status is TrialStatus.ERROR:
                trial.reason = event.error.message
        case events.TrialLost():
            _count_loss(trial, event)
            _explain_restart(trial, event.reason)
        case events.RestoreFailed():
            _explain_restart(trial, event.reason)
        case _:  # the others only change the status
            pass
    return False


def apply_action(trial: Trial, action: actions.TrialAction, time: float) -> None:  # noqa: PLR0912 - one case for each kind of action
    """Apply an action at a time, in seconds of the runner's clock."""
    _change_status(trial, type(action), time)
    match action:
        case actions.StartTrial() | actions.RestoreTrial():
            trial.incarnation, trial.last_seq, trial.pause_reason = action.incarnation, 0, ""
        case actions.ContinueTraining():
            trial.awaiting_seq = 0
        case actions.UnpauseTrial() | actions.ResumeTrial():
            trial.pause_reason = ""
        case actions.ResizeTrial() | actions.ChangeRequest():
            _set_resources(trial, action)
        case actions.ExploitTrial():
            trial.config, trial.pickled = action.config, action.pickled
            if action.checkpoint is not None:
                cut_back(trial, action.checkpoint.iteration)
                trial.cloned_in = trial.incarnation
        case actions.StopTrial() | actions.FinishTrial():
            trial.reason, trial.stopped_early = action.reason, action.early
        case actions.GiveUp():
            trial.reason = action.reason
        case actions.FailTrial():
            trial.reason = action.reason
            trial.errors.append(ErrorInfo(message=action.reason, traceback=action.traceback))
        case actions.ReopenTrial():
            _reset(trial, fresh=action.fresh)
        case _:  # the others only change the status
            pass
    if isinstance(action, actions.LeaveWorker | actions.SuspendTrial | actions.ExploitTrial):
        trial.pause_reason = action.reason


def add_checkpoint(trial: Trial, record: CheckpointRecord) -> None:
    """Add a checkpoint to those of its trial; it replaces an older one in memory."""
    # A checkpoint in memory that is stored late has a lower number than newer ones.
    trial.next_checkpoint = max(trial.next_checkpoint, record.index + 1)
    if record.kind is CheckpointKind.MEMORY:
        trial.memory = record
        return
    trial.checkpoints.append(record)
    if trial.memory is not None and trial.memory.index <= record.index:
        trial.memory = None


def cut_back(trial: Trial, iteration: int) -> None:
    """Remove the results after an iteration of a trial that will resume from a checkpoint of it."""
    trial.history.cut_back(iteration)
    # Otherwise the clone would have to exceed the removed results before it counts as having made
    # progress.
    trial.progress_at_loss = min(trial.progress_at_loss, trial.progress)


def _change_status(trial: Trial, cause: type, time: float) -> None:
    """Move a trial along its row of the table.

    The state machine checks before that there is a row. A reader may lack one after an event of a
    newer version, which it has skipped; the record then says the status.
    """
    before = trial.status
    after = TRANSITIONS.get((before, cause), before)
    if after is before:
        return
    trial.status, trial.awaiting_seq = after, 0
    if after.is_final:
        trial.ended_at, trial.pause_reason, trial.status_log = time, "", NO_STATUS_LOG
        if after is TrialStatus.ERROR:
            trial.stopped_early = False


def _explain_restart(trial: Trial, reason: str) -> None:
    # A trial that was leaving its worker anyway keeps the reason for that.
    if trial.status is TrialStatus.PENDING:
        trial.pause_reason = reason


def _set_resources(trial: Trial, action: actions.ResizeTrial | actions.ChangeRequest) -> None:
    """Set a trial's resources.

    They count from now on, although a trial that is being resized holds its former ones until it
    has left its worker. Otherwise the same resources could be promised to several trials.
    """
    base = trial.base_resources
    trial.resources = action.resources
    trial.first_resources = None if action.resources == base else base


def _count_loss(trial: Trial, event: events.TrialLost) -> None:
    """Count the loss of a trial's worker.

    Progress since the last loss resets the counts. A loss that several trials share counts against
    none of them, because any of them may have caused it; see `Trial.is_suspect`.
    """
    if trial.progress > trial.progress_at_loss:
        trial.worker_losses = trial.shared_losses = 0
    trial.progress_at_loss = trial.progress
    trial.losses += 1
    if event.charged and event.shared:
        trial.shared_losses += 1
    else:
        trial.worker_losses += event.charged


def _clear_suspicion(trial: Trial) -> None:
    if trial.is_suspect and trial.progress > trial.progress_at_loss:
        trial.shared_losses = 0


def _reset(trial: Trial, *, fresh: bool) -> None:
    """Clear the end of a trial, so that it can run again; with `fresh` from its beginning."""
    trial.reason, trial.pause_reason, trial.ended_at, trial.stopped_early = "", "", None, False
    trial.failures = trial.worker_losses = trial.shared_losses = 0
    trial.status_log = new_status_log()
    if fresh:
        trial.resources, trial.first_resources = trial.base_resources, None
        trial.history, trial.errors = trial.history.emptied(), []
        trial.checkpoints, trial.best_score, trial.started_at, trial.ancestry = [], None, None, ()
