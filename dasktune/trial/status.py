"""The statuses of a trial and the table of its transitions.

The rules:

1. A trial has exactly one status. Work in flight (starting, saving, stopping) is a status of its
   own, never a flag beside the status.
2. A status changes only by a row of :data:`TRANSITIONS`. An absent pair is a bug in dasktune.
3. Events and actions both move a trial. An action moves it when it is issued, because the worker
   obeys some time later. An event that the worker sends before it receives the action crosses the
   action on the network; each such pair has a row.
4. Users see only :class:`PublicStatus`, the five statuses of Ray Tune.
5. ``TERMINATED`` and ``ERROR`` are final. A trial leaves them only in a later session, when the
   user requests to continue or restart it.
6. No policy can start a trial that the user has paused. It is ``SUSPENDED`` if it would otherwise
   be pending. It is ``SHELVED`` if its scheduler had paused it, too; the scheduler's commands still
   apply.
"""

from __future__ import annotations

from enum import Enum

from dasktune.trial import actions, events


class PublicStatus(str, Enum):
    """The five statuses that users see."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    #: That of `Enum` is a function in Python, which each lookup would call.
    __hash__ = str.__hash__

    def __str__(self) -> str:
        return self.value


class TrialStatus(str, Enum):
    """The status of a trial, work in flight included."""

    __hash__ = str.__hash__

    PENDING = "pending"
    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    SAVING = "saving"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESIZING = "resizing"
    YIELDING = "yielding"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    SHELVING = "shelving"
    SHELVED = "shelved"
    STOPPING = "stopping"
    FAILING = "failing"
    TERMINATED = "terminated"
    ERROR = "error"

    @property
    def public(self) -> PublicStatus:
        """The status that users see."""
        return PUBLIC[self]

    @property
    def is_final(self) -> bool:
        """Whether the trial has ended."""
        return self in FINAL

    @property
    def is_paused_by_user(self) -> bool:
        """Whether the user has paused the trial and it is on no worker."""
        return self in PAUSED_BY_USER

    @property
    def is_active(self) -> bool:
        """Whether the trial holds resources on a worker."""
        return self in ACTIVE


_S = TrialStatus

FINAL = frozenset({_S.TERMINATED, _S.ERROR})

PAUSED_BY_USER = frozenset({_S.SUSPENDED, _S.SHELVED})

ACTIVE = frozenset(
    {
        _S.STARTING,
        _S.RESTORING,
        _S.RUNNING,
        _S.SAVING,
        _S.PAUSING,
        _S.RESIZING,
        _S.YIELDING,
        _S.SUSPENDING,
        _S.SHELVING,
        _S.STOPPING,
        _S.FAILING,
    }
)

PUBLIC: dict[TrialStatus, PublicStatus] = {
    _S.PENDING: PublicStatus.PENDING,
    _S.STARTING: PublicStatus.PENDING,
    _S.RESTORING: PublicStatus.PENDING,
    _S.RUNNING: PublicStatus.RUNNING,
    _S.SAVING: PublicStatus.RUNNING,
    _S.PAUSING: PublicStatus.RUNNING,
    _S.PAUSED: PublicStatus.PAUSED,
    _S.RESIZING: PublicStatus.RUNNING,
    _S.YIELDING: PublicStatus.RUNNING,
    _S.SUSPENDING: PublicStatus.RUNNING,
    _S.SUSPENDED: PublicStatus.PAUSED,
    _S.SHELVING: PublicStatus.RUNNING,
    _S.SHELVED: PublicStatus.PAUSED,
    _S.STOPPING: PublicStatus.RUNNING,
    _S.FAILING: PublicStatus.RUNNING,
    _S.TERMINATED: PublicStatus.TERMINATED,
    _S.ERROR: PublicStatus.ERROR,
}

_Cause = type[events.TrialEvent] | type[actions.TrialAction]

#: What a trial of each status accepts: the causes of each next status. A cause that is absent is a
#: bug, not a default.
_ROWS: dict[TrialStatus, dict[TrialStatus, tuple[_Cause, ...]]] = {
    # Waiting for a place to run.
    _S.PENDING: {
        _S.PENDING: (actions.ChangeRequest, actions.ExploitTrial, actions.ReopenTrial),
        _S.STARTING: (actions.StartTrial,),
        _S.RESTORING: (actions.RestoreTrial,),
        _S.SUSPENDED: (actions.SuspendTrial,),
        _S.TERMINATED: (actions.FinishTrial,),
        _S.ERROR: (actions.GiveUp,),
    },
    # On its way to a worker. A worker's messages come in order, so TrialStarted is the first.
    _S.STARTING: {
        _S.PENDING: (events.StartFailed, events.TrialFailed, events.TrialLost, events.TrialReturned),
        _S.RUNNING: (events.TrialStarted,),
        _S.SUSPENDING: (actions.RecallTrial,),
        _S.STOPPING: (actions.StopTrial,),
    },
    # The same, from a checkpoint.
    _S.RESTORING: {
        _S.PENDING: (events.StartFailed, events.TrialFailed, events.TrialLost, events.TrialReturned),
        _S.RUNNING: (events.TrialStarted,),
        _S.SUSPENDING: (actions.RecallTrial,),
        _S.STOPPING: (actions.StopTrial,),
    },
    # A trial does not wait for CheckpointTrial, and may end before it arrives. After GrowTrial it
    # runs on until its next checkpoint, then leaves without an order of the experiment, and is lost
    # without a failure, as after a notice. Of ExploitTrial the worker gets the PauseTrial that
    # follows. RestoreFailed: user code was to load a checkpoint that is missing or damaged; the
    # worker's TrialStarted comes before, so user code was running.
    _S.RUNNING: {
        _S.RUNNING: (
            events.CheckpointCommitted,
            events.ResultReported,
            actions.AdmitOthers,
            actions.CheckpointTrial,
            actions.ContinueTraining,
            actions.ExploitTrial,
            actions.GrowTrial,
        ),
        _S.PENDING: (events.RestoreFailed, events.TrialFailed, events.TrialLost),
        _S.SAVING: (actions.SaveTrial,),
        _S.PAUSING: (actions.PauseTrial,),
        _S.RESIZING: (actions.ResizeTrial,),
        _S.YIELDING: (actions.YieldTrial,),
        _S.SUSPENDING: (actions.RecallTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.FAILING: (actions.FailTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Saving at the driver's request. Afterwards the worker continues without a further action. If
    # the trainable had nothing to save, its next result comes without a checkpoint.
    _S.SAVING: {
        _S.PENDING: (events.RestoreFailed, events.TrialFailed, events.TrialLost),
        _S.RUNNING: (events.CheckpointCommitted, events.ResultReported),
        _S.SUSPENDING: (actions.RecallTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Messages that the worker sent before it received PauseTrial are late, not wrong. A paused
    # trial needs only its last checkpoint, so the loss of its worker does not matter.
    _S.PAUSING: {
        _S.PAUSING: (events.CheckpointCommitted, events.ResultReported, events.TrialStarted),
        _S.PENDING: (events.TrialFailed,),
        _S.PAUSED: (events.RestoreFailed, events.TrialLost, events.TrialPaused),
        _S.SHELVING: (actions.SuspendTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # By its scheduler.
    _S.PAUSED: {
        _S.PAUSED: (actions.ChangeRequest, actions.ExploitTrial),
        _S.PENDING: (actions.ReopenTrial, actions.UnpauseTrial),
        _S.SHELVED: (actions.SuspendTrial,),
        _S.TERMINATED: (actions.FinishTrial,),
    },
    # Leaving its worker to restart with other resources. It is then pending, before all others.
    _S.RESIZING: {
        _S.RESIZING: (events.CheckpointCommitted, events.ResultReported),
        _S.PENDING: (events.RestoreFailed, events.TrialFailed, events.TrialLost, events.TrialPaused),
        _S.SUSPENDING: (actions.SuspendTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Leaving its worker because its resources are due to another experiment. The trial runs until
    # the worker receives the pause, and the policies decide on its results. Then it is pending,
    # before all others.
    _S.YIELDING: {
        _S.YIELDING: (events.CheckpointCommitted, events.ResultReported, actions.ExploitTrial),
        _S.PENDING: (events.RestoreFailed, events.TrialFailed, events.TrialLost, events.TrialPaused),
        _S.PAUSING: (actions.PauseTrial,),
        _S.RESIZING: (actions.ResizeTrial,),
        _S.SUSPENDING: (actions.RecallTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.FAILING: (actions.FailTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Leaving its worker because the user pauses it. The trial runs until the worker receives the
    # pause, and the policies decide on its results. If its code fails, it is tried again when the
    # user unpauses it.
    _S.SUSPENDING: {
        _S.SUSPENDING: (
            events.CheckpointCommitted,
            events.ResultReported,
            events.TrialStarted,
            actions.ExploitTrial,
            actions.ResizeTrial,
        ),
        _S.SUSPENDED: (
            events.RestoreFailed,
            events.StartFailed,
            events.TrialFailed,
            events.TrialLost,
            events.TrialPaused,
            events.TrialReturned,
        ),
        _S.SHELVING: (actions.PauseTrial,),
        _S.STOPPING: (actions.StopTrial,),
        _S.FAILING: (actions.FailTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Paused by the user; otherwise it would be pending.
    _S.SUSPENDED: {
        _S.SUSPENDED: (actions.ChangeRequest, actions.ExploitTrial),
        _S.PENDING: (actions.ReopenTrial, actions.ResumeTrial),
        _S.TERMINATED: (actions.FinishTrial,),
        _S.ERROR: (actions.GiveUp,),
    },
    # As SUSPENDING, but its scheduler was pausing it already, so it gets no more decisions.
    _S.SHELVING: {
        _S.SHELVING: (events.CheckpointCommitted, events.ResultReported, events.TrialStarted),
        _S.SUSPENDED: (events.TrialFailed,),
        _S.SHELVED: (events.RestoreFailed, events.TrialLost, events.TrialPaused),
        _S.STOPPING: (actions.StopTrial,),
        _S.TERMINATED: (events.TrialEnded,),
    },
    # Paused by both. The scheduler need not know of the user: a trial that the scheduler unpauses
    # still waits for the user.
    _S.SHELVED: {
        _S.SHELVED: (actions.ChangeRequest, actions.ExploitTrial),
        _S.PENDING: (actions.ReopenTrial,),
        _S.PAUSED: (actions.ResumeTrial,),
        _S.SUSPENDED: (actions.UnpauseTrial,),
        _S.TERMINATED: (actions.FinishTrial,),
    },
    # Messages that the worker sent before it received StopTrial are late, not wrong. The trial was
    # to end, so a loss or a failed start ends it as well. If its code raised while it was being
    # stopped, the user must see that.
    _S.STOPPING: {
        _S.STOPPING: (events.CheckpointCommitted, events.ResultReported, events.TrialStarted),
        _S.TERMINATED: (
            events.RestoreFailed,
            events.StartFailed,
            events.TrialEnded,
            events.TrialLost,
            events.TrialPaused,
            events.TrialReturned,
            events.TrialStopped,
        ),
        _S.ERROR: (events.TrialFailed,),
    },
    # Being stopped because the stopper raised on its result: it ends in error in any case.
    _S.FAILING: {
        _S.FAILING: (events.CheckpointCommitted, events.ResultReported),
        _S.ERROR: (
            events.RestoreFailed,
            events.TrialEnded,
            events.TrialFailed,
            events.TrialLost,
            events.TrialPaused,
            events.TrialStopped,
        ),
    },
    # Ended. Only the user leads out of here, in a later session.
    _S.TERMINATED: {
        _S.PENDING: (actions.ReopenTrial,),
    },
    _S.ERROR: {
        _S.PENDING: (actions.ReopenTrial,),
    },
}

#: The next status by the present one and the cause.
TRANSITIONS: dict[tuple[TrialStatus, _Cause], TrialStatus] = {
    (status, cause): after
    for status, rows in _ROWS.items()
    for after, causes in rows.items()
    for cause in causes
}
