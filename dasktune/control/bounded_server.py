"""An HTTP server with a limited number of connections."""

from __future__ import annotations

from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream


class BoundedServer(HTTPServer):
    """An HTTP server that closes connections while it has too many.

    The oldest connection without an accepted request is closed first. So connections that another
    user opens and leaves idle do not keep the owner of a token out. Its arguments are those of
    :meth:`initialize`.
    """

    def initialize(  # type: ignore[override]  # the other arguments stay tornado's
        self, *args: Any, max_connections: int, **kwargs: Any
    ) -> None:
        """Initialize the server; tornado calls this with the constructor's arguments.

        Parameters
        ----------
        *args
            As for `tornado.httpserver.HTTPServer`.
        max_connections : int
            Maximum number of open connections.
        **kwargs
            As for `tornado.httpserver.HTTPServer`.
        """
        super().initialize(*args, **kwargs)
        self._max_connections = max_connections
        #: The open connections, oldest first, and whether a request of each was accepted.
        self._streams: dict[IOStream, bool] = {}

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Serve a new connection, or close it if all others have accepted requests."""
        self._streams = {one: kept for one, kept in self._streams.items() if not one.closed()}
        if len(self._streams) >= self._max_connections:
            idle = next((one for one, is_accepted in self._streams.items() if not is_accepted), None)
            if idle is None:
                stream.close()
                return
            del self._streams[idle]
            idle.close()
        self._streams[stream] = False
        super().handle_stream(stream, address)

    def accept(self, request: HTTPServerRequest) -> None:
        """Keep the connection of a request, which has proved that it may use this server.

        Parameters
        ----------
        request : HTTPServerRequest
            The request, before it is answered.
        """
        stream = getattr(request.connection, "stream", None)
        if stream in self._streams:
            self._streams[stream] = True
