"""The control server: a thread of the driver with an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from dasktune.control import whereabouts
from dasktune.control.handlers import LARGEST_BODY, make_application
from dasktune.guard import Guard, new_token
from dasktune.runner.commands import Commands
from dasktune.storage.location import Storage

__all__ = ["ControlServer", "controlled"]

logger = logging.getLogger(__name__)

_ADDRESS: Final = "127.0.0.1"

#: Connections that are open at a time; more are closed at once.
_MOST_CONNECTIONS: Final = 128
#: Bytes of a request's head.
_LARGEST_HEAD: Final = 16 << 10
#: Seconds for a request to arrive.
_ARRIVAL: Final = 15.0
#: Seconds for the thread to begin and to end.
_DEADLINE: Final = 30.0


class _BoundedServer(HTTPServer):
    """Closes at once what comes when enough connections are open."""

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            stream.close()
        else:
            super().handle_stream(stream, address)


class ControlServer:
    """Takes commands to an experiment over HTTP, from this machine, until it is closed.

    Parameters
    ----------
    commands : Commands
        By which the experiment is told.
    port : int, default=0
        Where it listens; 0 is a free port.
    token : str, optional
        What each request must have; one that nobody can guess by default.

    Raises
    ------
    OSError
        If it cannot listen there.

    Attributes
    ----------
    port : int
        Where it listens.
    token : str
        What each request must have.
    """

    def __init__(self, commands: Commands, *, port: int = 0, token: str | None = None) -> None:
        self.token = new_token() if token is None else token
        self._application = make_application(commands, Guard(self.token))
        # Here, so that whoever made it hears if the port is taken.
        self._sockets = bind_sockets(port, _ADDRESS)
        self.port = int(self._sockets[0].getsockname()[1])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dasktune-control")
        self._thread.start()
        self._ready.wait(_DEADLINE)

    @property
    def url(self) -> str:
        """Where it is; the token is no part of it."""
        return f"http://{_ADDRESS}:{self.port}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def close(self) -> None:
        """End it; harmless if it has ended."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_DEADLINE)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            logger.warning("the control server has ended", exc_info=True)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        server = _BoundedServer(
            self._application,
            max_body_size=LARGEST_BODY,
            max_buffer_size=2 * LARGEST_BODY,
            max_header_size=_LARGEST_HEAD,
            idle_connection_timeout=_ARRIVAL,
            body_timeout=_ARRIVAL,
        )
        server.add_sockets(self._sockets)
        self._ready.set()
        await self._closing.wait()
        server.stop()
        await server.close_all_connections()


@contextmanager
def controlled(
    wanted: bool | int, commands: Commands, storage: Storage | None = None
) -> Iterator[ControlServer | None]:
    """Take commands over HTTP for as long as the context lasts.

    What goes wrong with it is logged, and the experiment goes on without.

    Parameters
    ----------
    wanted : bool or int
        At which port; True and 0 are a free one.
    commands : Commands
        By which the experiment is told.
    storage : Storage, optional
        The experiment's directory, where it is noted where the server is.

    Yields
    ------
    ControlServer or None
        None if there is none.
    """
    server = None
    try:
        server = ControlServer(commands, port=0 if wanted is True else wanted)
    except OSError as error:
        logger.warning("there is no control server at port %s: %s", wanted, error)
    if server is not None:
        logger.info("control server: %s", server.url)
        if storage is not None:
            whereabouts.note(storage, server.url)
        _print(f"Control: TuneClient({server.url!r}, token={server.token!r})\n")
    try:
        yield server
    finally:
        if server is not None:
            server.close()
            if storage is not None:
                whereabouts.forget(storage)


def _print(text: str) -> None:
    """Tell the user what must not stand in a log; the only place that has the token."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        logger.debug("there is nobody to tell the token")
