"""When checkpoints are made, and which of them are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from dasktune.errors import check
from dasktune.rules import check_bool, is_int, is_text
from dasktune.trial.metrics import Mode
from dasktune.trial.retention import Retention

__all__ = ["CheckpointConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are made, and which of them are kept.

    Parameters
    ----------
    num_to_keep : int, optional
        How many checkpoints of a trial are kept, the newest besides; all by default.
    checkpoint_score_attribute : str, optional
        The metric by which the best ones are kept; by default the newest are.
    checkpoint_score_order : {"max", "min"}, default="max"
        Which way that metric is better.
    checkpoint_frequency : int, default=0
        Save after each so many results, where dasktune saves (the class API); 0 is never.
    checkpoint_at_end : bool, optional
        Save when a trial ends; by default so with the class API, where dasktune saves. True also
        for a trial that is ended while it is paused: then `memory_limit` is of no effect.
    memory_limit : int, optional
        Bytes up to which the checkpoint of a paused trial stays in the memory of the workers and is
        not written to the storage; 0 always writes it. One that is lost with its worker, or with
        the driver, is made up for by the trial's last one in the storage. By default 100,000,000;
        or 0 while all workers are on one machine and the storage is a path there, because its disk
        is as quick.

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
            "Which way it is better is checkpoint_score_order.",
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
        """Bytes up to which the checkpoint of a paused trial stays in memory."""
        # Else nobody could save what a trial was that is ended while it is paused.
        limit = 100_000_000 if self.memory_limit is None else self.memory_limit
        return 0 if self.checkpoint_at_end else limit

    @property
    def retention(self) -> Retention:
        """Which checkpoints are kept, as the experiment understands it."""
        return Retention(
            num_to_keep=self.num_to_keep,
            score_attribute=self.checkpoint_score_attribute,
            score_order=self.checkpoint_score_order,
        )
