"""What a trial is doing, and the one table of how that may change.

The rules:

1. A trial has exactly one status. Work in flight (starting, saving, stopping) is a status of its
   own, never a flag beside the status.
2. A status changes only by a row of :data:`TRANSITIONS`. An absent pair is a bug in dasktune.
3. Events (facts, past tense) and actions (commands, imperative) both move a trial: an action from
   the moment that it is issued, because the worker obeys it some time later.
4. Users see only :class:`PublicStatus`, Ray Tune's five words.
5. ``TERMINATED`` and ``ERROR`` are final: nothing leads out of them but the user's own wish, in a
   later session, to go on with a trial or to begin it anew.
6. A trial that the user lets rest is where no policy can wake it: ``SUSPENDED`` if it would be
   pending, ``SHELVED`` if it would be paused by its scheduler, whose orders still reach it.
"""

from __future__ import annotations

from enum import Enum

from dasktune.trial.actions import (
    AdmitOthers,
    ChangeRequest,
    ContinueTraining,
    ExploitTrial,
    FailTrial,
    FinishTrial,
    GiveUp,
    PauseTrial,
    RecallTrial,
    ReopenTrial,
    ResizeTrial,
    RestoreTrial,
    ResumeTrial,
    SaveTrial,
    StartTrial,
    StopTrial,
    SuspendTrial,
    TrialAction,
    UnpauseTrial,
)
from dasktune.trial.events import (
    CheckpointCommitted,
    ResultReported,
    StartFailed,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialLost,
    TrialPaused,
    TrialReturned,
    TrialStarted,
    TrialStopped,
)

__all__ = ["FINAL", "PUBLIC", "TRANSITIONS", "PublicStatus", "TrialStatus"]


class PublicStatus(str, Enum):
    """The five words that users see."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    def __str__(self) -> str:
        return self.value


class TrialStatus(str, Enum):
    """What a trial is doing, work in flight included."""

    PENDING = "pending"
    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    SAVING = "saving"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESIZING = "resizing"
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
        """The word that users see for it."""
        return PUBLIC[self]

    @property
    def is_final(self) -> bool:
        """Whether the trial has ended for good."""
        return self in FINAL

    @property
    def is_resting(self) -> bool:
        """Whether the user lets the trial rest, off its worker."""
        return self in RESTING

    @property
    def is_active(self) -> bool:
        """Whether the trial holds resources on a worker."""
        return self in ACTIVE


_S = TrialStatus

FINAL = frozenset({_S.TERMINATED, _S.ERROR})

RESTING = frozenset({_S.SUSPENDED, _S.SHELVED})

ACTIVE = frozenset(
    {
        _S.STARTING,
        _S.RESTORING,
        _S.RUNNING,
        _S.SAVING,
        _S.PAUSING,
        _S.RESIZING,
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
TRANSITIONS: dict[tuple[TrialStatus, type[TrialEvent] | type[TrialAction]], TrialStatus] = {
    # Waiting for a place to run.
    (_S.PENDING, StartTrial): _S.STARTING,
    (_S.PENDING, RestoreTrial): _S.RESTORING,
    (_S.PENDING, GiveUp): _S.ERROR,
    (_S.PENDING, FinishTrial): _S.TERMINATED,
    (_S.PENDING, ChangeRequest): _S.PENDING,
    # On its way to a worker. Its messages come in order, so nothing overtakes this one.
    (_S.STARTING, TrialStarted): _S.RUNNING,
    (_S.RESTORING, TrialStarted): _S.RUNNING,
    # Running.
    (_S.RUNNING, ResultReported): _S.RUNNING,
    (_S.RUNNING, CheckpointCommitted): _S.RUNNING,
    (_S.RUNNING, ContinueTraining): _S.RUNNING,
    (_S.RUNNING, AdmitOthers): _S.RUNNING,
    (_S.RUNNING, SaveTrial): _S.SAVING,
    (_S.RUNNING, PauseTrial): _S.PAUSING,
    (_S.RUNNING, ResizeTrial): _S.RESIZING,
    # Its worker hears of it as a pause, which follows.
    (_S.RUNNING, ExploitTrial): _S.RUNNING,
    (_S.RUNNING, FailTrial): _S.FAILING,
    (_S.RUNNING, TrialEnded): _S.TERMINATED,
    # Saving because the driver asked for it; the worker goes on by itself afterwards, and where the
    # trainable had nothing to save, its next result says so.
    (_S.SAVING, CheckpointCommitted): _S.RUNNING,
    (_S.SAVING, ResultReported): _S.RUNNING,
    (_S.SAVING, TrialEnded): _S.TERMINATED,
    # Pausing. What crosses our PauseTrial on the wire is late, not wrong.
    (_S.PAUSING, CheckpointCommitted): _S.PAUSING,
    (_S.PAUSING, ResultReported): _S.PAUSING,
    (_S.PAUSING, TrialStarted): _S.PAUSING,
    (_S.PAUSING, TrialPaused): _S.PAUSED,
    (_S.PAUSING, TrialEnded): _S.TERMINATED,
    # The worker is gone, but all that a paused trial needs is its last checkpoint.
    (_S.PAUSING, TrialLost): _S.PAUSED,
    (_S.PAUSED, UnpauseTrial): _S.PENDING,
    (_S.PAUSED, FinishTrial): _S.TERMINATED,
    (_S.PAUSED, ChangeRequest): _S.PAUSED,
    # Leaving its worker to come back with other resources: it does not wait for anybody's word, and
    # goes before all that wait.
    (_S.RESIZING, CheckpointCommitted): _S.RESIZING,
    (_S.RESIZING, ResultReported): _S.RESIZING,
    (_S.RESIZING, TrialPaused): _S.PENDING,
    (_S.RESIZING, TrialEnded): _S.TERMINATED,
    # Leaving its worker because the user lets it rest. It runs until it hears of it, and what it
    # reports is judged; but for one that pauses anyway.
    (_S.RESIZING, SuspendTrial): _S.SUSPENDING,
    (_S.PAUSING, SuspendTrial): _S.SHELVING,
    (_S.SUSPENDING, PauseTrial): _S.SHELVING,
    (_S.SUSPENDING, ResizeTrial): _S.SUSPENDING,
    (_S.SUSPENDING, ExploitTrial): _S.SUSPENDING,
    (_S.SUSPENDING, FailTrial): _S.FAILING,
    (_S.SUSPENDING, StartFailed): _S.SUSPENDED,
    (_S.SUSPENDING, TrialReturned): _S.SUSPENDED,
    # Resting. The scheduler need not know of it: what it lets go on then waits for the user only.
    (_S.PENDING, SuspendTrial): _S.SUSPENDED,
    (_S.PAUSED, SuspendTrial): _S.SHELVED,
    (_S.SHELVED, UnpauseTrial): _S.SUSPENDED,
    (_S.SUSPENDED, GiveUp): _S.ERROR,
    (_S.SUSPENDED, ResumeTrial): _S.PENDING,
    (_S.SHELVED, ResumeTrial): _S.PAUSED,
    # Stopping. What crosses our StopTrial on the wire is late, not wrong.
    (_S.STOPPING, TrialStarted): _S.STOPPING,
    (_S.STOPPING, ResultReported): _S.STOPPING,
    (_S.STOPPING, CheckpointCommitted): _S.STOPPING,
    (_S.STOPPING, TrialStopped): _S.TERMINATED,
    (_S.STOPPING, TrialPaused): _S.TERMINATED,
    (_S.STOPPING, TrialEnded): _S.TERMINATED,
    # Whatever ends a trial that was to end anyway, it has ended.
    (_S.STOPPING, TrialLost): _S.TERMINATED,
    (_S.STOPPING, StartFailed): _S.TERMINATED,
    (_S.STOPPING, TrialReturned): _S.TERMINATED,
    # Its code failed while it was being stopped: the user must hear of it.
    (_S.STOPPING, TrialFailed): _S.ERROR,
    # Being stopped because the driver could not judge it: whatever ends it, it ends in error.
    (_S.FAILING, ResultReported): _S.FAILING,
    (_S.FAILING, CheckpointCommitted): _S.FAILING,
    (_S.FAILING, TrialStopped): _S.ERROR,
    (_S.FAILING, TrialPaused): _S.ERROR,
    (_S.FAILING, TrialEnded): _S.ERROR,
    (_S.FAILING, TrialLost): _S.ERROR,
    (_S.FAILING, TrialFailed): _S.ERROR,
}
# What may befall a trial at any time on a worker; whether it may try again is the experiment's to
# say.
for _status in (_S.STARTING, _S.RESTORING, _S.RUNNING, _S.SAVING, _S.PAUSING, _S.RESIZING):
    TRANSITIONS[_status, TrialFailed] = _S.PENDING
    TRANSITIONS[_status, StopTrial] = _S.STOPPING
for _status in (_S.STARTING, _S.RESTORING, _S.RUNNING, _S.SAVING):
    TRANSITIONS[_status, RecallTrial] = _S.SUSPENDING
for _leaving, _left in ((_S.SUSPENDING, _S.SUSPENDED), (_S.SHELVING, _S.SHELVED)):
    for _event in (TrialStarted, ResultReported, CheckpointCommitted):
        TRANSITIONS[_leaving, _event] = _leaving
    TRANSITIONS[_leaving, TrialPaused] = TRANSITIONS[_leaving, TrialLost] = _left
    TRANSITIONS[_leaving, TrialEnded] = _S.TERMINATED
    TRANSITIONS[_leaving, StopTrial] = _S.STOPPING
    # It is to begin again, when the user lets it.
    TRANSITIONS[_leaving, TrialFailed] = _S.SUSPENDED
    TRANSITIONS[_left, FinishTrial] = _S.TERMINATED
    TRANSITIONS[_left, ChangeRequest] = _left
for _status in (_S.STARTING, _S.RESTORING, _S.RUNNING, _S.SAVING, _S.RESIZING):
    TRANSITIONS[_status, TrialLost] = _S.PENDING
for _status in (
    _S.PENDING,
    _S.PAUSED,
    _S.SUSPENDED,
    _S.SHELVED,
    _S.TERMINATED,
    _S.ERROR,
):
    TRANSITIONS[_status, ReopenTrial] = _S.PENDING
for _status in (_S.PENDING, _S.PAUSED, _S.SUSPENDED, _S.SHELVED):
    # It is on no worker: this only changes what it will be started with.
    TRANSITIONS[_status, ExploitTrial] = _status
for _status in (_S.STARTING, _S.RESTORING):
    TRANSITIONS[_status, StartFailed] = _S.PENDING
    TRANSITIONS[_status, TrialReturned] = _S.PENDING
