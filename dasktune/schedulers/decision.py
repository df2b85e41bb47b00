"""Decisions and commands of trial schedulers: values that the experiment carries out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint_record import CheckpointKind
from dasktune.trial.resources import PlacementGroupFactory


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

    The command has no effect on a trial that is on a worker; see :class:`Resize`.

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
    """Make a paused or pending trial a clone of a donor, as :class:`Exploit` does.

    The command has no effect if the trial is running, or if the donor has no such checkpoint.

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


#: A scheduler's command to a trial other than the one that reported the result.
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
        Where to save the checkpoint. In memory it takes milliseconds, and is lost with its worker.
    hold : bool, default=False
        Keep the trial's newest checkpoint, perhaps saved with this result, until its next result
        with `hold`, even if the retention rule would delete it. Other trials may then become clones
        of this state.

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
        Where to save the checkpoint. In memory it takes milliseconds; if it is lost with its
        worker, the trial resumes from its last checkpoint in the storage.
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
    """Make the trial a clone of a donor: pause it, and resume it from the donor's checkpoint.

    The trial's ``training_iteration`` continues from that of the checkpoint. Results of later
    iterations are removed from its history; the journal keeps them.

    Parameters
    ----------
    donor : str
        Id of the trial whose checkpoint is used. With the trial's own id only its configuration
        changes, and the trial saves a checkpoint first, where the trainable can (the class API).
    config : dict
        The trial's new configuration.
    reason : str
        The reason, for the journal and the user.
    iteration : int, optional
        Use the donor's newest checkpoint up to this ``training_iteration``. A decision with `hold`
        at that iteration ensures that there is one. By default the newest checkpoint of all.
    otherwise : Continue or Pause, default=Continue()
        The decision that applies if the donor has no such checkpoint.
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
        The budget of the rung that stopped the trial, in units of the scheduler's `time_attr`.
    cutoff : float, optional
        The value of the metric with which the trial would have continued there.

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
        The trial's new resources. The trial waits until a worker has room for them.
    reason : str
        The reason, for the journal and the user.
    save : bool, default=True
        Save a checkpoint first, where the trainable can (the class API).
    commands : tuple of Command, default=()
        Commands to other trials.
    kind : CheckpointKind, default=CheckpointKind.MEMORY
        Where to save the checkpoint, as for :class:`Pause`.
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
