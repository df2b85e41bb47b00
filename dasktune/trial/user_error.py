"""An exception of user code. It has a module of its own, because workers import no events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception of user code, as text: its class may exist on the worker only."""

    #: Last line of the traceback, "ValueError: no such loss".
    message: str
    #: The whole traceback as the worker printed it.
    traceback: str = ""
    #: The pickled exception, or empty if it cannot be pickled. For ``fail_fast="raise"``.
    pickled: bytes = field(default=b"", repr=False)
    #: Whether every trial would fail with it, unless some trial has a result.
    fails_all_trials: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the journal, without the exception itself."""
        every = {"fails_all_trials": True} if self.fails_all_trials else {}
        return {"message": self.message, "traceback": self.traceback, **every}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ErrorInfo:
        """Return the error that :meth:`to_json` described."""
        every = data.get("fails_all_trials") is True
        return cls(message=data["message"], traceback=data["traceback"], fails_all_trials=every)
