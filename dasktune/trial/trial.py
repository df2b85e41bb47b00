"""Driver-side metadata of one training run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.events import ErrorInfo
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.status import PublicStatus, TrialStatus

__all__ = ["NO_STORY", "STORY_LENGTH", "Trial", "new_story"]

#: Deaths of workers, each shared with other trials, after which a trial has to run alone.
_MOST_SHARED_LOSSES = 2

#: How many steps of an unfinished trial's story are kept for error messages.
STORY_LENGTH = 30

#: The story of every trial that has ended; even an empty deque of its own takes over half a KiB.
NO_STORY: deque[tuple[TrialStatus, type, int, int]] = deque(maxlen=0)


def new_story() -> deque[tuple[TrialStatus, type, int, int]]:
    """Return the story of a trial to which nothing has happened."""
    return deque(maxlen=STORY_LENGTH)


@dataclass(slots=True, kw_only=True, eq=False)
class Trial:
    """One training run: its configuration, what it is doing, and what came of it so far.

    Only the experiment changes a trial. Policies and observers read it.

    Parameters
    ----------
    trial_id : str
        Unique within the experiment, ``{5 hex digits}_{number of 5 digits}``.
    config : dict
        The resolved configuration that user code gets.
    resources : PlacementGroupFactory
        What the trial holds while it is on a worker; a scheduler may change it.
    tag : str, default=""
        What distinguishes it from its siblings, ``"lr=0.1,depth=3"``.
    """

    trial_id: str
    config: dict[str, Any]
    resources: PlacementGroupFactory
    tag: str = ""
    #: What it is called for people, and its directory; empty for its id.
    name: str = ""
    dirname: str = ""
    #: Whether JSON cannot tell the configuration, so that the store keeps it as a pickle.
    pickled: bool = False
    #: Whether the user has added it while the experiment ran: the search never hears of it.
    added: bool = False
    status: TrialStatus = TrialStatus.PENDING
    #: What it asked for at first; None as long as it has not been resized.
    first_resources: PlacementGroupFactory | None = None
    #: Counts the starts, from 1; 0 before the first.
    incarnation: int = 0
    #: Where it runs, or ran last.
    worker: str = ""
    #: Row of each ``training_iteration``, in order; one row per iteration.
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    #: ``training_iteration`` -> index in `history`.
    rows: dict[int, int] = field(default_factory=dict, repr=False)
    #: Checkpoints that retention keeps, oldest first; the last one is the newest.
    checkpoints: list[CheckpointRecord] = field(default_factory=list, repr=False)
    #: A newer one than those, kept in the memory of the workers.
    memory: CheckpointRecord | None = field(default=None, repr=False)
    #: The checkpoint of another trial, which it goes on from until it has a newer one of its own.
    origin: CheckpointRecord | None = field(default=None, repr=False)
    #: Checkpoints that retention has given up and other trials still go on from.
    lent: tuple[CheckpointRecord, ...] = field(default=(), repr=False)
    #: ``training_iteration`` as of which others may be told to go on from it; -1 for none.
    held_at: int = -1
    #: The newest checkpoint up to there, which stays for that.
    held: CheckpointRecord | None = field(default=None, repr=False)
    #: Which incarnation was the last before it was told to go on from `origin`.
    cloned_in: int = 0
    #: Which of the experiment's exploits have led to what it is now, oldest first: the donor's,
    #: then its own.
    ancestry: tuple[int, ...] = field(default=(), repr=False)
    #: Number that the next checkpoint gets.
    next_checkpoint: int = 0
    #: Failures of user code over the trial's life.
    failures: int = 0
    #: Workers that it has lost over its life, whoever was to blame.
    losses: int = 0
    #: Charged worker losses since the trial last made progress.
    worker_losses: int = 0
    #: Losses since then that it shared with other trials, any of which may be to blame.
    shared_losses: int = 0
    #: `progress` at the last loss.
    progress_at_loss: tuple[int, int] = (0, -1)
    errors: list[ErrorInfo] = field(default_factory=list, repr=False)
    #: Why it ended, was stopped or given up.
    reason: str = ""
    #: Whether a scheduler has ended it, or is about to, though it had further to go.
    stopped_early: bool = False
    #: Why it was taken off its worker last.
    pause_reason: str = ""
    #: Seconds on the runner's clock; None until it happens.
    started_at: float | None = None
    ended_at: float | None = None
    #: Last `seq` that came from the current incarnation.
    last_seq: int = 0
    #: Result `seq` at which the worker waits for an answer; 0 if it does not wait.
    awaiting_seq: int = 0
    #: What it went through, for error messages, oldest first: status, what came, incarnation, seq.
    story: deque[tuple[TrialStatus, type, int, int]] = field(default_factory=new_story, repr=False)

    @property
    def folder(self) -> str:
        """Name of its directory."""
        return self.dirname or self.trial_id

    @property
    def public_status(self) -> PublicStatus:
        """The status as users see it."""
        return self.status.public

    @property
    def base_resources(self) -> PlacementGroupFactory:
        """What it asked for at first, whatever it has been given since."""
        return self.first_resources or self.resources

    @property
    def last_result(self) -> dict[str, Any]:
        """Its newest row, empty before the first."""
        return self.history[-1] if self.history else {}

    @property
    def last_iteration(self) -> int:
        """Highest ``training_iteration`` so far, 0 before the first result."""
        return int(self.last_result.get("training_iteration", 0))

    @property
    def checkpoint(self) -> CheckpointRecord | None:
        """The newest one in the storage."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def kept_checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """All of its own that somebody may still want."""
        others = [record for record in (self.memory, self.held) if record is not None]
        return (*self.checkpoints, *self.lent, *others)

    @property
    def restore_point(self) -> CheckpointRecord | None:
        """What it goes on from when it is started again; None for its beginning."""
        return self.origin or self.memory or self.checkpoint

    @property
    def progress(self) -> tuple[int, int]:
        """What a loss of the worker cannot take away; it only grows.

        The number of committed checkpoints and, as long as there are none, the highest
        ``training_iteration``: any checkpoint is worth more than all that can be lost.
        """
        return self.next_checkpoint, 0 if self.next_checkpoint else self.last_iteration

    @property
    def is_suspect(self) -> bool:
        """Whether it has to run alone, so that its worker's next death shows whether it did it."""
        return self.shared_losses >= _MOST_SHARED_LOSSES

    @property
    def request(self) -> PlacementGroupFactory:
        """What it needs of a place now: its resources, and whether it has to be alone there."""
        return self.resources.exclusively() if self.is_suspect else self.resources

    @property
    def error(self) -> ErrorInfo | None:
        """The last failure of its code."""
        return self.errors[-1] if self.errors else None

    def __str__(self) -> str:
        return f"{self.trial_id}[{self.status.value}]"
