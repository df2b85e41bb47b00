"""The specification of one start of a trial, which the driver sends to its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import RankSettings
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.milestone import EVERY_RESULT, Milestone
from dasktune.trial.resources import PlacementGroupFactory

#: Where user code runs; "auto" decides by the trial's resources.
Isolation = Literal["auto", "thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One start (incarnation) of a trial: all that its worker needs except the configuration."""

    trial_id: str
    #: Counts the starts of the trial, from 1; part of the checkpoints' paths.
    incarnation: int
    resources: PlacementGroupFactory
    #: The experiment's directory.
    storage: Storage
    #: Name of the trial's directory, below ``trials/`` of `storage`.
    trial_dir: str
    experiment_name: str
    trial_name: str
    #: The trial's own checkpoint to resume from; None to start from scratch.
    checkpoint: CheckpointRecord | None = None
    #: The results at which user code waits for the driver's decision.
    milestones: tuple[Milestone, ...] = EVERY_RESULT
    #: Number that the next checkpoint gets.
    next_checkpoint: int = 0
    #: Iterations from one automatic checkpoint to the next; 0 for none (the class API).
    checkpoint_frequency: int = 0
    #: Save a checkpoint with the last result (the class API); None: only if the class can save.
    checkpoint_at_end: bool | None = None
    #: Metrics that every result must have, because the searcher, scheduler or stopper reads them.
    required_metrics: tuple[str, ...] = ()
    #: Whether user code runs in a thread of the worker or in a child process.
    isolation: Isolation = "thread"
    #: The GPUs of the trial's first bundle, as in ``CUDA_VISIBLE_DEVICES``; None for all that the
    #: worker sees.
    devices: tuple[str, ...] | None = None
    #: Whether its worker has no access to `storage`, so that checkpoints go through the driver.
    relayed: bool = False
    #: Names of the files for stdout and stderr in the trial's directory; None to keep neither.
    log_files: tuple[str, str] | None = None
    #: Whether its child process works in the trial's directory.
    chdir: bool = False
    #: Seconds without a result after which the trial has failed; None for no limit.
    report_timeout_s: float | None = None
    #: Grace period in seconds for user code that was interrupted.
    stop_grace: float = 10.0
    #: The experiment's initial checkpoint, for a trial that has no checkpoint yet; None if none.
    initial_checkpoint: CheckpointRecord | None = None
    #: Formats that its class exports when the trial ends without a failure.
    export_formats: tuple[str, ...] = ()
    #: Address of the worker of each bundle, in the order of `resources`.
    bundle_workers: tuple[str, ...] = ()
    #: How the ranks of a distributed trial run; None for a trial of one process.
    ranks: RankSettings | None = None
    #: The GPUs of each bundle of a distributed trial, as `devices`; empty for any other trial.
    bundle_devices: tuple[tuple[str, ...] | None, ...] = ()
    #: The values of the secrets in its configuration, each with its name.
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
