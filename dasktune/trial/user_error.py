"""An exception of user code. It has a module of its own, because workers import no events."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ErrorInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception of user code, as text: its class may exist on the worker only."""

    #: Last line of the traceback, "ValueError: no such loss".
    message: str
    #: The whole traceback as the worker printed it.
    traceback: str = ""
    #: The pickled exception, or empty if it cannot be pickled. For ``fail_fast="raise"``.
    pickled: bytes = field(default=b"", repr=False)
