"""The user's limits and goals, as far as the state machine needs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dasktune.trial.metrics import Mode
from dasktune.trial.retention import Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """Limits and goals of an experiment.

    Parameters
    ----------
    metric : str, optional
        The metric to optimise.
    mode : {"min", "max"}, optional
        Whether smaller or larger values are better.
    max_failures : int, default=0
        How often the code of one trial may fail and be tried again, over its life; -1 is any
        number.
    fail_fast : bool or "raise", default=False
        End the experiment as soon as a trial has failed and has no tries left.
    max_total_failures : int, optional
        How often the code of all trials together may fail before the experiment ends; no limit by
        default.
    max_worker_losses : int, default=3
        How often a trial may lose its worker without progress in between.
    max_concurrent : int, default=0
        How many trials may be on workers at a time; 0 is no limit.
    streaming : bool, default=True
        Let trials continue between the milestones of the policies; otherwise they wait for a
        decision at each result.
    retention : Retention, optional
        Which checkpoints of a trial are kept; all by default.
    """

    metric: str | None = None
    mode: Mode | None = None
    max_failures: int = 0
    fail_fast: bool | Literal["raise"] = False
    max_total_failures: int | None = None
    max_worker_losses: int = 3
    max_concurrent: int = 0
    streaming: bool = True
    retention: Retention = field(default_factory=Retention)
