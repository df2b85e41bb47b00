"""Decisions and commands of trial schedulers: values that the experiment carries out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.resources import PlacementGroupFactory

__all__ = [
    "Command",
    "Continue",
    "Decision",
    "Exploit",
    "ExploitOther",
    "Pause",
    "Resize",
    "ResizeWaiting",
    "Stop",
    "StopOther",
    "Unpause",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpause:
    """Let a paused trial wait for resources again.

    Examples
    --------
    >>> Continue(commands=(Unpause(trial_id="a_00003"),)).commands[0].trial_id
    'a_00003'
    """

    trial_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOther:
    """End another trial, whatever its status.

    Examples
    --------
    >>> Continue(commands=(StopOther(trial_id="a_00003", reason="its twin is better"),)).commands
    (StopOther(trial_id='a_00003', reason='its twin is better'),)
    """

    trial_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWaiting:
    """Change the requested resources of another trial that is pending or paused.

    It does nothing to a trial that is on a worker; see :class:`Resize`.

    Examples
    --------
    >>> larger = PlacementGroupFactory([{"CPU": 4}])
    >>> ResizeWaiting(trial_id="a_00003", resources=larger).resources.required_resources
    {'CPU': 4}
    """

    trial_id: str
    resources: PlacementGroupFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploitOther:
    """Make another trial that is paused or pending a clone, as :class:`Exploit` does.

    It does nothing if the trial is running, or if the donor has no such checkpoint.

    Examples
    --------
    >>> ExploitOther(trial_id="a_00003", donor="a_00001", config={"lr": 0.1}, reason="it is behind")
    ExploitOther(trial_id='a_00003', donor='a_00001', reason='it is behind', iteration=None)
    """

    trial_id: str
    donor: str
    config: dict[str, Any] = field(repr=False)
    reason: str
    iteration: int | None = None


#: Commands of a scheduler to trials other than the one that it decides about.
Command = Unpause | StopOther | ResizeWaiting | ExploitOther


@dataclass(frozen=True, slots=True)
class Continue:
    """Continue training.

    Parameters
    ----------
    save : bool, default=False
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        Commands to other trials.
    kind : CheckpointKind, default=CheckpointKind.PERSISTENT
        Where to save it. A checkpoint in memory takes milliseconds, and is lost with its worker.
    hold : bool, default=False
        Keep the trial's newest checkpoint up to this result, including the one that is saved with
        it, until the next result with `hold`, whatever the retention rule is. Other trials may
        then become clones of this state.

    Examples
    --------
    >>> Continue().save, Continue(save=True).save
    (False, True)
    """

    save: bool = False
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.PERSISTENT
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Take the trial off its worker; it resumes later from its last checkpoint.

    Parameters
    ----------
    reason : str
        The reason, for the journal and the user.
    save : bool, default=True
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        Commands to other trials.
    kind : CheckpointKind, default=CheckpointKind.MEMORY
        Where to save it. A checkpoint in memory takes milliseconds; if it is lost with its worker,
        the trial resumes from its last one in the storage.
    hold : bool, default=False
        As for :class:`Continue`.

    Examples
    --------
    >>> Pause("waits for its bracket").save
    True
    """

    reason: str
    save: bool = True
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.MEMORY
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Exploit:
    """Make the trial a clone of another one: pause it, and resume it from that one's checkpoint.

    Its ``training_iteration`` continues from the checkpoint's. Results of later iterations are
    removed from its history; the journal keeps them.

    Parameters
    ----------
    donor : str
        Id of the trial whose checkpoint it resumes from. The trial's own id changes only its
        configuration; then it is saved first, where the trainable can.
    config : dict
        Its new configuration.
    reason : str
        The reason, for the journal and the user.
    iteration : int, optional
        ``training_iteration`` up to which the donor's newest checkpoint is used; a result with
        `hold` at that iteration makes sure that there is one. By default the newest of all.
    otherwise : Continue or Pause, default=Continue()
        The decision instead, if the donor has no such checkpoint.
    commands : tuple of Command, default=()
        Commands to other trials.

    Examples
    --------
    >>> Exploit("a_00001", {"lr": 0.1}, "it is among the worst").otherwise == Continue()
    True
    """

    donor: str
    config: dict[str, Any] = field(repr=False)
    reason: str
    iteration: int | None = None
    otherwise: Continue | Pause = Continue()
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial; this result is its last.

    Parameters
    ----------
    reason : str
        The reason, for the journal and the user.
    commands : tuple of Command, default=()
        Commands to other trials.
    early : bool, default=True
        Whether the trial ends before its planned end; searchers may treat such trials differently.
    rung : float, optional
        The rung at which the trial was compared, in units of the scheduler's `time_attr`.
    cutoff : float, optional
        The value of the metric that would have been enough there.

    Examples
    --------
    >>> Stop("it is not in the best third of rung 9").reason
    'it is not in the best third of rung 9'
    """

    reason: str
    commands: tuple[Command, ...] = ()
    early: bool = field(default=True, repr=False, compare=False)
    rung: float | None = field(default=None, repr=False, compare=False)
    cutoff: float | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the trial's resources: it leaves its worker and resumes before all waiting trials.

    Parameters
    ----------
    resources : PlacementGroupFactory
        Its new resources. It waits until a worker has room for them.
    reason : str
        The reason, for the journal and the user.
    save : bool, default=True
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        Commands to other trials.
    kind : CheckpointKind, default=CheckpointKind.MEMORY
        Where to save it, as for :class:`Pause`.
    hold : bool, default=False
        As for :class:`Continue`.

    Examples
    --------
    >>> Resize(PlacementGroupFactory([{"CPU": 4}]), "others have ended").resources.head_cpus
    4
    """

    resources: PlacementGroupFactory
    reason: str
    save: bool = True
    commands: tuple[Command, ...] = ()
    kind: CheckpointKind = CheckpointKind.MEMORY
    hold: bool = False


Decision = Continue | Pause | Resize | Exploit | Stop
