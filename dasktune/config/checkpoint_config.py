"""`CheckpointConfig`: when to save checkpoints and which ones to keep."""

from __future__ import annotations

from dataclasses import dataclass, field

from dasktune.config.validation import check_bool, is_int, is_text
from dasktune.errors import check
from dasktune.trial.metrics import Mode
from dasktune.trial.retention import Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When to save checkpoints and which ones to keep.

    Parameters
    ----------
    num_to_keep : int, optional
        The number of checkpoints to keep of each trial, besides the newest; all by default.
    checkpoint_score_attribute : str, optional
        The metric by which the best checkpoints are kept; by default the newest ones are kept.
    checkpoint_score_order : {"max", "min"}, default="max"
        Whether higher or lower values of that metric are better.
    checkpoint_frequency : int, default=0
        Save a checkpoint after every `checkpoint_frequency` results of a class trainable; 0 never
        does.
    checkpoint_at_end : bool, optional
        Save a checkpoint when a trial ends; by default only for class trainables. True includes
        trials that end while they are paused, and disables `memory_limit`.
    memory_limit : int, optional
        The checkpoint of a paused trial stays in the workers' memory if it has at most this many
        bytes, and is not written to the storage; 0 always writes it. If it is lost with its worker
        or the driver, the trial resumes from its last checkpoint in the storage. By default
        100,000,000, or 0 if all workers are on one machine and the storage is a path there, whose
        disk is as fast.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc").num_to_keep
    2
    """

    num_to_keep: int | None = field(default=None, kw_only=False)
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Mode = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        check(
            self.num_to_keep is None or is_int(self.num_to_keep, least=1),
            "num_to_keep",
            "a positive int or None",
            self.num_to_keep,
            "None keeps all.",
        )
        check(
            self.checkpoint_score_attribute is None or is_text(self.checkpoint_score_attribute),
            "checkpoint_score_attribute",
            "the name of a reported metric",
            self.checkpoint_score_attribute,
            "checkpoint_score_order says whether higher or lower is better.",
        )
        check(
            self.checkpoint_score_order in ("min", "max"),
            "checkpoint_score_order",
            "'min' or 'max'",
            self.checkpoint_score_order,
        )
        check(
            is_int(self.checkpoint_frequency, least=0),
            "checkpoint_frequency",
            "a non-negative int",
            self.checkpoint_frequency,
            "0 never saves.",
        )
        if self.checkpoint_at_end is not None:
            check_bool("checkpoint_at_end", self.checkpoint_at_end)
        check(
            self.memory_limit is None or is_int(self.memory_limit, least=0),
            "memory_limit",
            "a number of bytes, at least 0, or None",
            self.memory_limit,
            "0 writes all checkpoints to the storage.",
        )

    @property
    def pause_limit(self) -> int:
        """The maximum size in bytes of a paused trial's checkpoint that stays in memory."""
        # A trial that ends while it is paused has no process that could save its checkpoint.
        limit = 100_000_000 if self.memory_limit is None else self.memory_limit
        return 0 if self.checkpoint_at_end else limit

    @property
    def retention(self) -> Retention:
        """The rule by which the experiment keeps checkpoints."""
        return Retention(
            num_to_keep=self.num_to_keep,
            score_attribute=self.checkpoint_score_attribute,
            score_order=self.checkpoint_score_order,
        )
