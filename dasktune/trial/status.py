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

#: A pair that is absent is a bug, not a default.
TRANSITIONS: dict[tuple[TrialStatus, type[events.TrialEvent] | type[actions.TrialAction]], TrialStatus] = {
    # Waiting for a place to run.
    (_S.PENDING, actions.StartTrial): _S.STARTING,
    (_S.PENDING, actions.RestoreTrial): _S.RESTORING,
    (_S.PENDING, actions.GiveUp): _S.ERROR,
    (_S.PENDING, actions.FinishTrial): _S.TERMINATED,
    (_S.PENDING, actions.ChangeRequest): _S.PENDING,
    # On its way to a worker. A worker's messages come in order, so TrialStarted is the first.
    (_S.STARTING, events.TrialStarted): _S.RUNNING,
    (_S.RESTORING, events.TrialStarted): _S.RUNNING,
    # Running.
    (_S.RUNNING, events.ResultReported): _S.RUNNING,
    (_S.RUNNING, events.CheckpointCommitted): _S.RUNNING,
    (_S.RUNNING, actions.ContinueTraining): _S.RUNNING,
    (_S.RUNNING, actions.AdmitOthers): _S.RUNNING,
    # The trial does not wait for this one, and may end before it arrives.
    (_S.RUNNING, actions.CheckpointTrial): _S.RUNNING,
    # The trial runs on until its next checkpoint. It then leaves without an order of the experiment
    # and is lost without a failure, as after a notice.
    (_S.RUNNING, actions.GrowTrial): _S.RUNNING,
    (_S.RUNNING, actions.SaveTrial): _S.SAVING,
    (_S.RUNNING, actions.PauseTrial): _S.PAUSING,
    (_S.RUNNING, actions.ResizeTrial): _S.RESIZING,
    # A PauseTrial follows, and only that is sent to the worker.
    (_S.RUNNING, actions.ExploitTrial): _S.RUNNING,
    (_S.RUNNING, actions.FailTrial): _S.FAILING,
    (_S.RUNNING, events.TrialEnded): _S.TERMINATED,
    # Saving at the driver's request. Afterwards the worker continues without a further action. If
    # the trainable had nothing to save, its next result comes without a checkpoint.
    (_S.SAVING, events.CheckpointCommitted): _S.RUNNING,
    (_S.SAVING, events.ResultReported): _S.RUNNING,
    (_S.SAVING, events.TrialEnded): _S.TERMINATED,
    # Pausing. Messages that the worker sent before it received PauseTrial are late, not wrong.
    (_S.PAUSING, events.CheckpointCommitted): _S.PAUSING,
    (_S.PAUSING, events.ResultReported): _S.PAUSING,
    (_S.PAUSING, events.TrialStarted): _S.PAUSING,
    (_S.PAUSING, events.TrialPaused): _S.PAUSED,
    (_S.PAUSING, events.TrialEnded): _S.TERMINATED,
    # A paused trial needs only its last checkpoint, so the loss of its worker does not matter.
    (_S.PAUSING, events.TrialLost): _S.PAUSED,
    (_S.PAUSED, actions.UnpauseTrial): _S.PENDING,
    (_S.PAUSED, actions.FinishTrial): _S.TERMINATED,
    (_S.PAUSED, actions.ChangeRequest): _S.PAUSED,
    # Leaving its worker to restart with other resources. It is pending at once, before all others.
    (_S.RESIZING, events.CheckpointCommitted): _S.RESIZING,
    (_S.RESIZING, events.ResultReported): _S.RESIZING,
    (_S.RESIZING, events.TrialPaused): _S.PENDING,
    (_S.RESIZING, events.TrialEnded): _S.TERMINATED,
    # Leaving its worker because its resources are due to another experiment. The trial runs until
    # the worker receives the pause, and the policies decide on its results. Then it is pending,
    # before all others.
    (_S.RUNNING, actions.YieldTrial): _S.YIELDING,
    (_S.YIELDING, events.CheckpointCommitted): _S.YIELDING,
    (_S.YIELDING, events.ResultReported): _S.YIELDING,
    (_S.YIELDING, events.TrialPaused): _S.PENDING,
    (_S.YIELDING, events.TrialEnded): _S.TERMINATED,
    (_S.YIELDING, actions.PauseTrial): _S.PAUSING,
    (_S.YIELDING, actions.ResizeTrial): _S.RESIZING,
    (_S.YIELDING, actions.ExploitTrial): _S.YIELDING,
    (_S.YIELDING, actions.FailTrial): _S.FAILING,
    # Leaving its worker because the user pauses it. The trial runs until the worker receives the
    # pause, and the policies decide on its results. Only a trial that its scheduler was pausing
    # already (SHELVING) gets no more decisions.
    (_S.RESIZING, actions.SuspendTrial): _S.SUSPENDING,
    (_S.PAUSING, actions.SuspendTrial): _S.SHELVING,
    (_S.SUSPENDING, actions.PauseTrial): _S.SHELVING,
    (_S.SUSPENDING, actions.ResizeTrial): _S.SUSPENDING,
    (_S.SUSPENDING, actions.ExploitTrial): _S.SUSPENDING,
    (_S.SUSPENDING, actions.FailTrial): _S.FAILING,
    (_S.SUSPENDING, events.StartFailed): _S.SUSPENDED,
    (_S.SUSPENDING, events.TrialReturned): _S.SUSPENDED,
    # Paused by the user. The scheduler need not know: a trial that the scheduler unpauses still
    # waits for the user.
    (_S.PENDING, actions.SuspendTrial): _S.SUSPENDED,
    (_S.PAUSED, actions.SuspendTrial): _S.SHELVED,
    (_S.SHELVED, actions.UnpauseTrial): _S.SUSPENDED,
    (_S.SUSPENDED, actions.GiveUp): _S.ERROR,
    (_S.SUSPENDED, actions.ResumeTrial): _S.PENDING,
    (_S.SHELVED, actions.ResumeTrial): _S.PAUSED,
    # Stopping. Messages that the worker sent before it received StopTrial are late, not wrong.
    (_S.STOPPING, events.TrialStarted): _S.STOPPING,
    (_S.STOPPING, events.ResultReported): _S.STOPPING,
    (_S.STOPPING, events.CheckpointCommitted): _S.STOPPING,
    (_S.STOPPING, events.TrialStopped): _S.TERMINATED,
    (_S.STOPPING, events.TrialPaused): _S.TERMINATED,
    (_S.STOPPING, events.TrialEnded): _S.TERMINATED,
    # The trial was to end, so a loss or a failed start ends it as well.
    (_S.STOPPING, events.TrialLost): _S.TERMINATED,
    (_S.STOPPING, events.StartFailed): _S.TERMINATED,
    (_S.STOPPING, events.TrialReturned): _S.TERMINATED,
    # The trial's code raised while the trial was being stopped, which the user must see.
    (_S.STOPPING, events.TrialFailed): _S.ERROR,
    # Being stopped because the stopper raised on its result: it ends in error in any case.
    (_S.FAILING, events.ResultReported): _S.FAILING,
    (_S.FAILING, events.CheckpointCommitted): _S.FAILING,
    (_S.FAILING, events.TrialStopped): _S.ERROR,
    (_S.FAILING, events.TrialPaused): _S.ERROR,
    (_S.FAILING, events.TrialEnded): _S.ERROR,
    (_S.FAILING, events.TrialLost): _S.ERROR,
    (_S.FAILING, events.TrialFailed): _S.ERROR,
}
# User code was to load a checkpoint that is missing or damaged: the trial starts again from an
# older one. The worker's TrialStarted comes before, so user code was running.
for _status, _after in (
    (_S.RUNNING, _S.PENDING),
    (_S.SAVING, _S.PENDING),
    (_S.RESIZING, _S.PENDING),
    (_S.YIELDING, _S.PENDING),
    (_S.PAUSING, _S.PAUSED),
    (_S.SUSPENDING, _S.SUSPENDED),
    (_S.SHELVING, _S.SHELVED),
    (_S.STOPPING, _S.TERMINATED),
    (_S.FAILING, _S.ERROR),
):
    TRANSITIONS[_status, events.RestoreFailed] = _after
# Possible at any time on a worker. The experiment decides whether the trial is tried again.
for _status in (
    _S.STARTING,
    _S.RESTORING,
    _S.RUNNING,
    _S.SAVING,
    _S.PAUSING,
    _S.RESIZING,
    _S.YIELDING,
):
    TRANSITIONS[_status, events.TrialFailed] = _S.PENDING
    TRANSITIONS[_status, actions.StopTrial] = _S.STOPPING
for _status in (_S.STARTING, _S.RESTORING, _S.RUNNING, _S.SAVING, _S.YIELDING):
    TRANSITIONS[_status, actions.RecallTrial] = _S.SUSPENDING
for _leaving, _left in ((_S.SUSPENDING, _S.SUSPENDED), (_S.SHELVING, _S.SHELVED)):
    for _event in (events.TrialStarted, events.ResultReported, events.CheckpointCommitted):
        TRANSITIONS[_leaving, _event] = _leaving
    TRANSITIONS[_leaving, events.TrialPaused] = TRANSITIONS[_leaving, events.TrialLost] = _left
    TRANSITIONS[_leaving, events.TrialEnded] = _S.TERMINATED
    TRANSITIONS[_leaving, actions.StopTrial] = _S.STOPPING
    # The trial is tried again when the user unpauses it.
    TRANSITIONS[_leaving, events.TrialFailed] = _S.SUSPENDED
    TRANSITIONS[_left, actions.FinishTrial] = _S.TERMINATED
    TRANSITIONS[_left, actions.ChangeRequest] = _left
for _status in (_S.STARTING, _S.RESTORING, _S.RUNNING, _S.SAVING, _S.RESIZING, _S.YIELDING):
    TRANSITIONS[_status, events.TrialLost] = _S.PENDING
for _status in (
    _S.PENDING,
    _S.PAUSED,
    _S.SUSPENDED,
    _S.SHELVED,
    _S.TERMINATED,
    _S.ERROR,
):
    TRANSITIONS[_status, actions.ReopenTrial] = _S.PENDING
for _status in (_S.PENDING, _S.PAUSED, _S.SUSPENDED, _S.SHELVED):
    # The trial is on no worker: these actions only change how it will be started.
    TRANSITIONS[_status, actions.ExploitTrial] = _status
for _status in (_S.STARTING, _S.RESTORING):
    TRANSITIONS[_status, events.StartFailed] = _S.PENDING
    TRANSITIONS[_status, events.TrialReturned] = _S.PENDING
