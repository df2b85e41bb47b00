"""Start the control server if a port is configured; tornado is imported only then."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dasktune.runner.commands import Commands
from dasktune.storage.fs.storage import Storage

if TYPE_CHECKING:
    from dasktune.control.server import ControlServer


def controlled(
    wanted: bool | int | None,
    commands: Commands,
    storage: Storage | None = None,
    *,
    public_metrics: bool = False,
) -> AbstractContextManager[ControlServer | None]:
    """Run a control server inside the ``with`` block if `wanted` requests one.

    Parameters
    ----------
    wanted : bool, int or None
        None and False start no server; True chooses a free port, an int is the port.
    commands : Commands
        The commands of the experiment.
    storage : Storage, optional
        The experiment's directory, for the file with the server's URL.
    public_metrics : bool, default=False
        Whether ``/metrics`` needs no token.
    """
    if wanted is None or wanted is False:
        return nullcontext()
    from dasktune.control.server import run_control_server

    return run_control_server(wanted, commands, storage, public_metrics=public_metrics)
