"""The driver's record of one trial."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.rows.trial_history import History
from dasktune.trial.status import PublicStatus, TrialStatus
from dasktune.trial.user_error import ErrorInfo

#: Losses of workers, each shared with other trials, after which a trial has to run alone.
_MOST_SHARED_LOSSES = 2

#: Number of an unfinished trial's last transitions that are kept for error messages.
STATUS_LOG_LENGTH = 30

#: The empty log of ended trials and of those read from a journal. Others take over half a KiB each.
NO_STATUS_LOG: deque[tuple[TrialStatus, type, int, int]] = deque(maxlen=0)


def new_status_log() -> deque[tuple[TrialStatus, type, int, int]]:
    """Return an empty log for a trial that an experiment adds."""
    return deque(maxlen=STATUS_LOG_LENGTH)


@dataclass(slots=True, kw_only=True, eq=False)
class Trial:
    """A training run: configuration, status, results and checkpoints.

    Only the experiment changes a trial. Policies and observers read it.

    Parameters
    ----------
    trial_id : str
        Unique within the experiment, ``{5 hex digits}_{number of 5 digits}``.
    config : dict
        The resolved configuration that user code gets.
    resources : PlacementGroupFactory
        The resources that the trial holds while it is on a worker; a scheduler may change them.
    tag : str, default=""
        Label that distinguishes it from other trials, ``"lr=0.1,depth=3"``.
    """

    trial_id: str
    config: dict[str, Any]
    resources: PlacementGroupFactory
    tag: str = ""
    #: Names of the trial and of its directory that users see. If empty, the ID is used.
    name: str = ""
    dirname: str = ""
    #: Whether JSON cannot hold the configuration, so that the store keeps it as a pickle.
    pickled: bool = False
    #: Whether the user has added the trial, which is then not reported to the search algorithm.
    added: bool = False
    status: TrialStatus = TrialStatus.PENDING
    #: The trial's resources before it was resized; None if it was not.
    first_resources: PlacementGroupFactory | None = None
    #: Counts the starts, from 1; 0 before the first.
    incarnation: int = 0
    #: Address of the trial's worker, or of the last one.
    worker: str = ""
    #: Results in order, one row for each ``training_iteration``.
    history: History = field(default_factory=History, repr=False)
    #: The best score of all its results; None without one, and unless there is one objective.
    best_score: float | None = None
    #: Checkpoints that retention keeps, oldest first; the last one is the newest.
    checkpoints: list[CheckpointRecord] = field(default_factory=list, repr=False)
    #: A newer checkpoint, in the memory of the workers.
    memory: CheckpointRecord | None = field(default=None, repr=False)
    #: The checkpoint of another trial, from which it resumes until it has a newer one of its own.
    origin: CheckpointRecord | None = field(default=None, repr=False)
    #: Checkpoints that retention has dropped and that other trials still refer to.
    lent: tuple[CheckpointRecord, ...] = field(default=(), repr=False)
    #: A scheduler may later clone the trial as it was at this ``training_iteration``; -1 for none.
    held_at: int = -1
    #: The newest checkpoint up to that iteration, kept for such a clone.
    held: CheckpointRecord | None = field(default=None, repr=False)
    #: The incarnation in which the trial became a clone. Late messages up to this incarnation
    #: belong to the former history.
    cloned_in: int = 0
    #: Indices in `Exploits.rows` of the exploits that have led to the trial, oldest first: first
    #: the donor's, then its own.
    ancestry: tuple[int, ...] = field(default=(), repr=False)
    #: Number of the next checkpoint.
    next_checkpoint: int = 0
    #: Failures of user code over the trial's life.
    failures: int = 0
    #: Losses of workers over the trial's life, charged or not.
    losses: int = 0
    #: Charged worker losses since the trial last made progress.
    worker_losses: int = 0
    #: Losses since then that the trial shared with others, any of which may be the cause.
    shared_losses: int = 0
    #: `progress` at the last loss.
    progress_at_loss: tuple[int, int] = (0, -1)
    errors: list[ErrorInfo] = field(default_factory=list, repr=False)
    #: Why it ended or was stopped.
    reason: str = ""
    #: Whether a scheduler has ended it, or is about to, before its training was complete.
    stopped_early: bool = False
    #: Why it waits, or leaves its worker; empty once it starts again or has ended.
    pause_reason: str = ""
    #: Seconds on the runner's clock; None until it happens.
    started_at: float | None = None
    ended_at: float | None = None
    #: Highest `seq` of the current incarnation's events.
    last_seq: int = 0
    #: `seq` of the result at which the worker waits for a decision; 0 if it does not wait.
    awaiting_seq: int = 0
    #: The last transitions, for error messages, oldest first: status, cause, incarnation, seq.
    status_log: deque[tuple[TrialStatus, type, int, int]] = field(
        default_factory=lambda: NO_STATUS_LOG, repr=False
    )

    @property
    def folder(self) -> str:
        """The name of the trial's directory."""
        return self.dirname or self.trial_id

    @property
    def public_status(self) -> PublicStatus:
        """The status as users see it."""
        return self.status.public

    @property
    def base_resources(self) -> PlacementGroupFactory:
        """The trial's resources before any resize."""
        return self.first_resources or self.resources

    @property
    def last_result(self) -> dict[str, Any]:
        """The newest result, empty before the first one."""
        return self.history[-1] if self.history else {}

    @property
    def last_iteration(self) -> int:
        """Highest ``training_iteration`` so far, 0 before the first result."""
        return int(self.last_result.get("training_iteration", 0))

    @property
    def checkpoint(self) -> CheckpointRecord | None:
        """The newest checkpoint in the storage."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def kept_checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The trial's own checkpoints that may still be needed."""
        others = [record for record in (self.memory, self.held) if record is not None]
        return (*self.checkpoints, *self.lent, *others)

    @property
    def memory_checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The trial's checkpoints in the memory of the workers: the newest one, and lent ones."""
        records = (self.memory, *self.lent)
        return tuple(one for one in records if one is not None and one.kind is CheckpointKind.MEMORY)

    @property
    def restore_point(self) -> CheckpointRecord | None:
        """The checkpoint from which the next start resumes; None to start from the beginning."""
        return self.origin or self.memory or self.checkpoint

    @property
    def progress(self) -> tuple[int, int]:
        """A measure of progress that the loss of a worker cannot reduce; larger is further.

        The number of committed checkpoints and, while there are none, the highest
        ``training_iteration``. Any checkpoint counts more than results that can be lost.
        """
        return self.next_checkpoint, 0 if self.next_checkpoint else self.last_iteration

    @property
    def is_suspect(self) -> bool:
        """Whether the trial must run alone, so that another loss shows if it is the cause."""
        return self.shared_losses >= _MOST_SHARED_LOSSES

    @property
    def request(self) -> PlacementGroupFactory:
        """The resource request of the trial's next start; exclusive if the trial is suspect."""
        return self.resources.exclusively() if self.is_suspect else self.resources

    @property
    def error(self) -> ErrorInfo | None:
        """The last failure of the trial's code."""
        return self.errors[-1] if self.errors else None

    @property
    def fails_all_trials(self) -> bool:
        """Whether every trial would fail with its last failure since it was last reopened."""
        return self.failures > 0 and self.error is not None and self.error.fails_all_trials

    def __str__(self) -> str:
        return f"{self.trial_id}[{self.status.value}]"
