"""`FailureConfig`: how many failures a trial and the experiment may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dasktune.config.validation import check_seconds, is_int
from dasktune.errors import check


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """How many failures a trial and the experiment may have.

    Parameters
    ----------
    max_failures : int, default=0
        How many times the code of a trial may fail and be retried from its last checkpoint; -1 is
        no limit. Lost workers do not count.
    fail_fast : bool or "raise", default=False
        End the experiment when the first trial fails; ``"raise"`` raises the trial's exception.
        Running trials are interrupted at once, have up to two seconds for their cleanup, and are
        recorded as terminated.
    max_worker_losses : int, default=3
        How many times a trial may lose its worker without progress in between. A worker that
        several trials lose at the same time counts for none of them.
    max_total_failures : int, optional
        How many times the code of all trials together may fail and be retried; the next failure
        ends the experiment. No limit by default.
    report_timeout_s : float, optional
        The most seconds that a trial's code may take to its first result and between two results.
        A trial that takes longer fails. Waiting for dasktune and saving do not count. The code is
        interrupted, and its process is killed if it has its own; a thread that blocks outside
        Python is abandoned, and its resources stay reserved. No limit by default.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or if `max_failures` and `fail_fast` are both given.

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
            "-1 retries without limit.",
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
