"""The control server: a thread of the driver with its own event loop.

The constructor binds the port and waits until the loop runs, so `close` finds a loop to stop.
`close` may be called while requests wait for the runner. It closes their connections, and does not
cancel their commands, which the runner executes if it still runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from tornado.httputil import HTTPServerRequest

from dasktune.control import address_file
from dasktune.control.handlers import LARGEST_BODY, make_application
from dasktune.control.http_guard import RequestGuard, new_token
from dasktune.control.local_server import BoundedServer, BoundPort
from dasktune.control.secret_notice import secret_notice
from dasktune.runner.commands import Commands
from dasktune.storage.fs.storage import Storage

logger = logging.getLogger(__name__)

_ADDRESS: Final = "127.0.0.1"

#: Maximum number of open connections.
_MAX_CONNECTIONS: Final = 128
#: Maximum size of a request's headers, in bytes.
_MAX_HEADERS: Final = 16 << 10
#: Seconds in which a request must arrive.
_REQUEST_TIMEOUT_S: Final = 15.0
#: Seconds to wait for the thread to start and to end.
_THREAD_TIMEOUT: Final = 30.0


class ControlServer:
    """Accepts commands to an experiment over HTTP from this machine, until it is closed.

    Parameters
    ----------
    commands : Commands
        The commands of the experiment.
    port : int, default=0
        The port to listen at; 0 chooses a free port.
    token : str, optional
        The token that each request must have; a random one by default.
    public_metrics : bool, default=False
        Whether ``/metrics`` needs no token.
    request_timeout_s : float, default=15.0
        Seconds in which a request must arrive, and until a connection without one is closed.

    Raises
    ------
    OSError
        If it cannot listen at the port.

    Attributes
    ----------
    port : int
        The port at which the server listens.
    token : str
        The token that each request must have.
    """

    def __init__(
        self,
        commands: Commands,
        *,
        port: int = 0,
        token: str | None = None,
        public_metrics: bool = False,
        request_timeout_s: float = _REQUEST_TIMEOUT_S,
    ) -> None:
        self._request_timeout_s = request_timeout_s
        self.token = new_token() if token is None else token
        self._application = make_application(
            commands, RequestGuard(self.token), self._accept, public_metrics=public_metrics
        )
        self._server: BoundedServer | None = None
        # Bind in the caller's thread, so that the caller gets the error if the port is in use.
        self._bound = BoundPort(_ADDRESS, port)
        self.port = self._bound.port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="dasktune-control")
        self._thread.start()
        self._ready.wait(_THREAD_TIMEOUT)

    @property
    def url(self) -> str:
        """The URL of the server, without the token."""
        return f"http://{_ADDRESS}:{self.port}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def close(self) -> None:
        """Stop the server and its thread; do nothing if they have ended."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_THREAD_TIMEOUT)

    def _accept(self, request: HTTPServerRequest) -> None:
        if self._server is not None:
            self._server.accept(request)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            logger.warning("the control server has ended", exc_info=True)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        server = self._server = BoundedServer(
            self._application,
            max_connections=_MAX_CONNECTIONS,
            max_body_size=LARGEST_BODY,
            max_buffer_size=2 * LARGEST_BODY,
            max_header_size=_MAX_HEADERS,
            idle_connection_timeout=self._request_timeout_s,
            body_timeout=self._request_timeout_s,
        )
        server.add_sockets(self._bound.sockets)
        self._ready.set()
        await self._closing.wait()
        server.stop()
        self._bound.close()
        await server.close_all_connections()


@contextmanager
def run_control_server(
    wanted: bool | int,
    commands: Commands,
    storage: Storage | None = None,
    *,
    public_metrics: bool = False,
) -> Iterator[ControlServer | None]:
    """Run a control server inside the ``with`` block.

    If it cannot start, a warning is logged, and the experiment runs without it.

    Parameters
    ----------
    wanted : bool or int
        The port; True and 0 choose a free one.
    commands : Commands
        The commands of the experiment.
    storage : Storage, optional
        The experiment's directory, for the file with the server's URL.
    public_metrics : bool, default=False
        Whether ``/metrics`` needs no token.

    Yields
    ------
    ControlServer or None
        The server; None if it could not start.
    """
    server = None
    try:
        port = 0 if wanted is True else wanted
        server = ControlServer(commands, port=port, public_metrics=public_metrics)
    except OSError as error:
        logger.warning("cannot start the control server at port %s: %s", wanted, error)
    if server is not None:
        logger.info("control server: %s", server.url)
        if storage is not None:
            address_file.write(storage, server.url)
    try:
        with nullcontext() if server is None else _announced(server):
            yield server
    finally:
        if server is not None:
            server.close()
            if storage is not None:
                address_file.remove(storage)


def _announced(server: ControlServer) -> AbstractContextManager[None]:
    # Not logged: the text contains the token.
    text = f"TuneClient({server.url!r}, token={server.token!r})"
    return secret_notice(sys.stderr, "Control", text)
