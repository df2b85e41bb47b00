"""Apply the user's requests about single trials: pause, unpause, add, reopen."""

from __future__ import annotations

from dasktune.trial.actions import CheckpointTrial, RecallTrial, ResumeTrial, SuspendTrial
from dasktune.trial.events import (
    Suggested,
    TrialAddRequested,
    TrialPauseRequested,
    TrialUnpauseRequested,
)
from dasktune.trial.rows.row_blocks import IN_MEMORY, BlockStore
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import TrialStatus
from dasktune.trial.trial import Trial, new_status_log

#: Statuses of a trial that runs or is about to run: its worker must pause it.
_ON_A_WORKER = frozenset(
    {
        TrialStatus.STARTING,
        TrialStatus.RESTORING,
        TrialStatus.RUNNING,
        TrialStatus.SAVING,
        TrialStatus.YIELDING,
    }
)

#: Statuses of a trial that is on no worker, or that its worker was already requested to pause.
_OFF_WORKERS = frozenset(
    {
        TrialStatus.PENDING,
        TrialStatus.PAUSED,
        TrialStatus.PAUSING,
        TrialStatus.RESIZING,
    }
)

#: The tag of a trial that the user has added.
_ADDED = "added"


def action_for_request(
    trial: Trial, request: TrialPauseRequested | TrialUnpauseRequested
) -> RecallTrial | SuspendTrial | ResumeTrial | None:
    """Return the action that a request leads to.

    Parameters
    ----------
    trial : Trial
        The trial that the request is about.
    request : TrialPauseRequested or TrialUnpauseRequested
        The request.

    Returns
    -------
    action or None
        None if the request comes too late or a second time: a trial to pause is ending or is paused
        by the user already, or a trial to unpause is not paused by the user.
    """
    key, incarnation = trial.trial_id, trial.incarnation
    if isinstance(request, TrialUnpauseRequested):
        if trial.status.is_paused_by_user:
            return ResumeTrial(trial_id=key, incarnation=incarnation)
        return None
    if trial.status in _ON_A_WORKER:
        return RecallTrial(trial_id=key, incarnation=incarnation, reason=request.reason)
    if trial.status in _OFF_WORKERS:
        return SuspendTrial(trial_id=key, incarnation=incarnation, reason=request.reason)
    return None


def checkpoint_action(trial: Trial) -> CheckpointTrial | None:
    """Return the action for a request to save a checkpoint; None if the trial does not train.

    A trial that leaves its worker saves a checkpoint anyway, if it needs one.
    """
    if trial.status is not TrialStatus.RUNNING:
        return None
    return CheckpointTrial(trial_id=trial.trial_id, incarnation=trial.incarnation)


def new_trial(event: Suggested | TrialAddRequested, blocks: BlockStore = IN_MEMORY) -> Trial:
    """Return the trial that an event adds.

    Parameters
    ----------
    event : Suggested or TrialAddRequested
        An event with a configuration.
    blocks : BlockStore, default=IN_MEMORY
        Keeps the older results of the trial.
    """
    assert event.config is not None, "a trial is added only with a configuration"
    assert event.resources is not None, "an event has resources exactly if it has a configuration"
    trial = Trial(
        trial_id=event.trial_id,
        config=event.config,
        resources=event.resources,
        pickled=event.pickled,
        history=History(store=blocks, owner=event.trial_id),
    )
    if isinstance(event, TrialAddRequested):
        trial.tag, trial.added = _ADDED, True
    else:
        trial.tag, trial.name, trial.dirname = event.tag, event.name, event.dirname
    return trial


def reset_trial(trial: Trial, *, fresh: bool) -> None:
    """Clear the end of a trial, so that the trial can run again.

    Parameters
    ----------
    trial : Trial
        A trial that is pending again.
    fresh : bool
        Also reset its results, errors and resources. Its checkpoints are not touched.
    """
    trial.reason, trial.pause_reason, trial.ended_at, trial.stopped_early = "", "", None, False
    trial.failures = trial.worker_losses = trial.shared_losses = 0
    trial.status_log = new_status_log()
    if fresh:
        trial.resources, trial.first_resources = trial.base_resources, None
        trial.history, trial.errors = History(store=trial.history.store, owner=trial.trial_id), []
        trial.best_score, trial.started_at, trial.ancestry = None, None, ()
