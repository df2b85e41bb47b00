"""What a worker needs to know to run a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dasktune.storage.location import Storage
from dasktune.trial.checkpoint import CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Isolation", "TrialSpec"]

#: What a trial is kept apart from others by; "auto" decides by its resources.
Isolation = Literal["auto", "thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One incarnation of one trial, as its worker sees it; all but its configuration."""

    trial_id: str
    #: Counts the starts of the trial, from 1; part of the checkpoints' paths.
    incarnation: int
    resources: PlacementGroupFactory
    #: Where the experiment lives.
    storage: Storage
    #: Name of the trial's directory, below ``trials/`` of `storage`.
    trial_dir: str
    experiment_name: str
    trial_name: str
    #: Where to go on from; None for the beginning.
    checkpoint: CheckpointRecord | None = None
    #: Where to wait for the driver's decision.
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Number that the next checkpoint gets.
    next_checkpoint: int = 0
    #: Save a checkpoint at each multiple of so many iterations; 0 for never (the class API).
    checkpoint_frequency: int = 0
    #: Save a checkpoint with the last result (the class API); None to do so if the class can.
    checkpoint_at_end: bool | None = None
    #: What every result must hold: the metrics that somebody decides by.
    required_metrics: tuple[str, ...] = ()
    #: Whether user code runs in a thread of the worker or in a process of its own.
    isolation: Isolation = "thread"
    #: The GPUs of the trial's own bundle, by the names that CUDA knows; None leaves what its worker
    #: sees.
    devices: tuple[str, ...] | None = None
    #: Whether its worker does not see `storage`, so that checkpoints go through the driver.
    relayed: bool = False
    #: Files of the trial's directory that keep its stdout and stderr; None to keep neither.
    log_files: tuple[str, str] | None = None
    #: Whether its process works in the trial's directory.
    chdir: bool = False
    #: Seconds without a result after which its code has failed; None for no limit.
    report_timeout_s: float | None = None
    #: Seconds that interrupted user code has to leave.
    stop_grace: float = 10.0
    #: What it begins from where it has no checkpoint of its own; None for nothing.
    beginning: CheckpointRecord | None = None
    #: What its class is asked to export at a good end.
    export_formats: tuple[str, ...] = ()
    #: Address of the worker of each bundle, in the order of `resources`.
    bundle_workers: tuple[str, ...] = ()
