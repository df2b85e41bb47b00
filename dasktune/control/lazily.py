"""The control server, imported only where one is wanted: tornado takes its time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dasktune.runner.commands import Commands
from dasktune.storage.location import Storage

if TYPE_CHECKING:
    from dasktune.control.server import ControlServer

__all__ = ["controlled"]


def controlled(
    wanted: bool | int | None, commands: Commands, storage: Storage | None = None
) -> AbstractContextManager[ControlServer | None]:
    """Take commands over HTTP for as long as the context lasts, if that is wanted.

    Parameters
    ----------
    wanted : bool, int or None
        Whether, or at which port.
    commands : Commands
        By which the experiment is told.
    storage : Storage, optional
        The experiment's directory, where it is noted where the server is.
    """
    if wanted is None or wanted is False:
        return nullcontext()
    from dasktune.control.server import controlled as really_controlled

    return really_controlled(wanted, commands, storage)
