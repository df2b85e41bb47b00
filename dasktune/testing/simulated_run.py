"""What a simulated executor knows of a trial that runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.testing.trial_kind import Steps
from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.events import TrialPaused, TrialStopped
from dasktune.trial.milestone import Milestone

__all__ = ["SimulatedRun"]


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """One incarnation of a trial on a slot."""

    trial_id: str
    incarnation: int
    steps: Steps
    milestones: tuple[Milestone, ...]
    next_checkpoint: int
    iteration: int = 0
    elapsed: float = 0.0
    seq: int = 0
    #: Its number among all starts.
    number: int = 0
    #: What its last step yielded as its checkpoint, where that is saved on demand.
    state: Any = None
    #: The last result.
    result: dict[str, Any] = field(default_factory=dict)
    #: Whether it will come to no result within its time.
    hangs: bool = False
    #: Whether it stands at a milestone and will tell nothing before it is answered.
    waits: bool = False
    #: What it tells instead of going on, once it has been told to stop or to pause.
    halt: type[TrialStopped] | type[TrialPaused] | None = None
    #: Where it saves before; None for nowhere.
    saves: CheckpointKind | None = None
