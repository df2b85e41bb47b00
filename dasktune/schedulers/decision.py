"""What a trial scheduler may want: values, carried out by the experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.trial.checkpoint import CheckpointKind
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
    """Let a paused trial wait for a place again.

    Examples
    --------
    >>> Continue(commands=(Unpause(trial_id="a_00003"),)).commands[0].trial_id
    'a_00003'
    """

    trial_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOther:
    """End another trial, wherever it is.

    Examples
    --------
    >>> Continue(commands=(StopOther(trial_id="a_00003", reason="its twin is better"),)).commands
    (StopOther(trial_id='a_00003', reason='its twin is better'),)
    """

    trial_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWaiting:
    """Let a trial that is on no worker, pending or paused, ask for other resources.

    For one that is on a worker it comes too late: see :class:`Resize`.

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
    """Let a trial that is paused or pending go on as :class:`Exploit` says.

    Nothing comes of it if the trial runs, or the donor has no such checkpoint.

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


#: What a scheduler may want of trials other than the one that it is asked about.
Command = Unpause | StopOther | ResizeWaiting | ExploitOther


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
    hold : bool, default=False
        Whether other trials may be told later to go on from this one as it is now: its newest
        checkpoint up to this result, the one that is saved with it included, stays until the next
        result that is held, whatever retention says.

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
    """Give the trial up for a clone of another one: it is paused, and goes on from there later.

    Its ``training_iteration`` goes on from the checkpoint's; what it has reported beyond that is
    cut from its history, and stays in the journal.

    Parameters
    ----------
    donor : str
        Id of the trial whose checkpoint it goes on from. The trial's own, if only its configuration
        is to change; then it is saved first, where the trainable can.
    config : dict
        What it goes on with.
    reason : str
        Why, for the journal and the user.
    iteration : int, optional
        ``training_iteration`` as of which the donor is cloned: its newest checkpoint up to there is
        taken, which is sure to be there if the donor was held at it. By default the newest of all.
    otherwise : Continue or Pause, default=Continue()
        What happens instead if the donor has no such checkpoint.
    commands : tuple of Command, default=()
        What is to happen to other trials.

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
    """End the trial; the result that was judged is its last.

    Parameters
    ----------
    reason : str
        Why, for the journal and the user.
    commands : tuple of Command, default=()
        What is to happen to other trials.
    early : bool, default=True
        Whether the trial had further to go. A searcher may learn something else from it then.

    Examples
    --------
    >>> Stop("it is not in the best third of rung 9").reason
    'it is not in the best third of rung 9'
    """

    reason: str
    commands: tuple[Command, ...] = ()
    early: bool = field(default=True, repr=False, compare=False)


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
