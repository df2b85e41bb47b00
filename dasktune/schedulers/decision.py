"""What a trial scheduler may want: values, carried out by the experiment."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune.trial.checkpoint import CheckpointKind
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "Command",
    "Continue",
    "Decision",
    "Pause",
    "Resize",
    "ResizeWaiting",
    "Stop",
    "StopOther",
    "Unpause",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpause:
    """Let a paused trial wait for a place again."""

    trial_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOther:
    """End another trial, wherever it is."""

    trial_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWaiting:
    """Let a trial that is on no worker, pending or paused, ask for other resources.

    For one that is on a worker it comes too late: see :class:`Resize`.
    """

    trial_id: str
    resources: PlacementGroupFactory


#: What a scheduler may want of trials other than the one that it is asked about.
Command = Unpause | StopOther | ResizeWaiting


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on training.

    Parameters
    ----------
    save : bool, default=False
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        What is to happen to other trials.
    kind : CheckpointKind, default=CheckpointKind.PERSISTENT
        Where to save it. One in memory takes milliseconds, and is gone with its worker.
    """

    save: bool = False
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.PERSISTENT


@dataclass(frozen=True, slots=True)
class Pause:
    """Take the trial off its worker; it goes on later from its last checkpoint.

    Parameters
    ----------
    reason : str
        Why, for the journal and the user.
    save : bool, default=True
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        What is to happen to other trials.
    kind : CheckpointKind, default=CheckpointKind.MEMORY
        Where to save it. One in memory takes milliseconds; if it is lost with its worker, the trial
        goes on from its last one in the storage.
    """

    reason: str
    save: bool = True
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.MEMORY


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial; the result that was judged is its last.

    Parameters
    ----------
    reason : str
        Why, for the journal and the user.
    commands : tuple of Command, default=()
        What is to happen to other trials.
    """

    reason: str
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Resize:
    """Let the trial leave its worker and go on with other resources, before all that wait.

    Parameters
    ----------
    resources : PlacementGroupFactory
        What it holds from then on. If no worker has room for it, it waits until one has.
    reason : str
        Why, for the journal and the user.
    save : bool, default=True
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        What is to happen to other trials.
    kind : CheckpointKind, default=CheckpointKind.MEMORY
        Where to save it, as for :class:`Pause`.
    """

    resources: PlacementGroupFactory
    reason: str
    save: bool = True
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.MEMORY


Decision = Continue | Pause | Resize | Stop
