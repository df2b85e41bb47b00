"""The port and the connections of a server, out of reach of other users of the machine.

A name such as ``localhost`` has an IPv4 and an IPv6 address, and a browser may try either first. If
the server listened on one of them only, another user could listen at the same port of the other,
and would be sent the token in the link. So a server has one literal address, its link contains that
address, and the port of the other family is reserved.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

#: The literal address of a name, and the address of the other family that is reserved with it.
_OTHER_FAMILY: Final = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::", "::": "0.0.0.0"}
#: Errors of a machine without one of the families.
_MISSING: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
#: Attempts to find a port that is free in both families.
_ATTEMPTS: Final = 20


def literal_address(address: str) -> str:
    """Return the address to bind for the address that the user has given.

    Examples
    --------
    >>> literal_address("localhost"), literal_address(""), literal_address("node7")
    ('127.0.0.1', '0.0.0.0', 'node7')
    """
    return {"localhost": "127.0.0.1", "": "0.0.0.0"}.get(address.lower(), address)


def url_host(address: str) -> str:
    """Return the host of the URL with which a browser on this machine reaches an address.

    Examples
    --------
    >>> url_host("localhost"), url_host("0.0.0.0"), url_host("::"), url_host("node7")
    ('127.0.0.1', '127.0.0.1', '[::1]', 'node7')
    """
    literal = literal_address(address)
    literal = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(literal, literal)
    return f"[{literal}]" if ":" in literal else literal


class BoundPort:
    """A port of an address, bound until it is closed.

    Parameters
    ----------
    address : str
        The address or name of an interface; ``"localhost"`` for this machine only, ``""`` for all.
    port : int
        The port; 0 chooses a free one.

    Raises
    ------
    OSError
        If the port is in use, in either family, or there is no such address.

    Attributes
    ----------
    port : int
        The port.
    sockets : list of socket
        The sockets that listen.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        literal = literal_address(address)
        for attempt in range(1, _ATTEMPTS + 1):
            self.sockets = bind_sockets(port, literal)
            self.port = int(self.sockets[0].getsockname()[1])
            try:
                self._reserved = _reserve(_OTHER_FAMILY.get(literal), self.port)
                return
            except OSError:
                self._close_sockets()
                if port or attempt == _ATTEMPTS:
                    raise

    def close(self) -> None:
        """Release the port. A server that uses the sockets has closed them."""
        self._close_sockets()
        if self._reserved is not None:
            self._reserved.close()

    def _close_sockets(self) -> None:
        for one in self.sockets:
            one.close()


def _reserve(address: str | None, port: int) -> socket.socket | None:
    """Bind an address without listening: no other process can use it, and connections fail."""
    if address is None:
        return None
    try:
        # Without SO_REUSEADDR, which would let another process bind the same address.
        reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:  # the kernel lacks the family
        return None
    try:
        if reserved.family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        reserved.bind((address, port))
    except OSError as error:
        reserved.close()
        if error.errno in _MISSING:
            return None
        raise
    return reserved


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
