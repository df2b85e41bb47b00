"""What failures cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dasktune.errors import check
from dasktune.rules import check_seconds, is_int

__all__ = ["FailureConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """What failures cost.

    Parameters
    ----------
    max_failures : int, default=0
        How often the code of one trial may fail and be tried again from its last checkpoint, over
        the trial's life; -1 is for ever. Lost workers do not count.
    fail_fast : bool or "raise", default=False
        End everything when the first trial fails; ``"raise"`` raises the trial's own exception.
    max_worker_losses : int, default=3
        How often a trial may lose its worker without having made progress in between. What several
        trials lose together counts against none of them.
    max_total_failures : int, optional
        How often the code of all trials together may fail and be tried again; the next failure ends
        everything. No limit by default.
    report_timeout_s : float, optional
        Seconds that a trial's code may take to its first result, and from each result to the next.
        A trial that takes longer has failed. What it waits for dasktune does not count, nor does
        saving. It is interrupted, and its process killed if it has one; in a thread that blocks
        outside Python it is given up, and its resources stay taken. No limit by default.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or if retries and `fail_fast` are both wanted.

    Examples
    --------
    >>> FailureConfig(max_failures=2, fail_fast=True)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: max_failures must be 0 with fail_fast=True, got 2. Choose one.
    """

    max_failures: int = field(default=0, kw_only=False)
    fail_fast: bool | Literal["raise"] = False
    max_worker_losses: int = 3
    max_total_failures: int | None = None
    report_timeout_s: float | None = None

    def __post_init__(self) -> None:
        check(
            is_int(self.max_failures, least=-1),
            "max_failures",
            "an int of at least -1",
            self.max_failures,
            "-1 tries again for ever.",
        )
        check(
            isinstance(self.fail_fast, bool) or self.fail_fast == "raise",
            "fail_fast",
            "True, False or 'raise'",
            self.fail_fast,
        )
        check(
            not (self.fail_fast and self.max_failures),
            "max_failures",
            f"0 with fail_fast={self.fail_fast!r}",
            self.max_failures,
            "Choose one.",
        )
        check(
            is_int(self.max_worker_losses, least=0),
            "max_worker_losses",
            "a non-negative int",
            self.max_worker_losses,
        )
        check(
            self.max_total_failures is None or is_int(self.max_total_failures, least=0),
            "max_total_failures",
            "a non-negative int or None",
            self.max_total_failures,
            "None is no limit.",
        )
        if self.report_timeout_s is not None:
            check_seconds("report_timeout_s", self.report_timeout_s)
