"""A line to an S3 server on which requests fail, chosen by a seed, as in a large object store."""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

#: Faults and their weights. Those that end with "after" come when the server has carried out the
#: request, which its client cannot know.
FAULTS: Final[Mapping[str, int]] = {
    "500": 2,
    "500 after": 2,
    "503": 3,
    "mute": 1,
    "mute after": 1,
    "slow": 2,
    "reset": 1,
    "reset after": 1,
    "reset in the body": 1,
}
#: Seconds for which a mute line sends nothing. The clients of `CLIENT` have a shorter timeout.
MUTE: Final = 5.0
#: Seconds between two parts of a slow answer, and the number of its parts.
SLOW: Final = 0.2
PARTS: Final = 5
#: Options of a botocore client that retries within a test.
CLIENT: Final = {"read_timeout": 2.0, "connect_timeout": 2.0}


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault</Message></Error>".encode()


class FaultyLine:
    """A proxy on its own port in front of a server.

    Parameters
    ----------
    port : int
        The server's port.
    seed : int
        Chooses the faults.
    rate : float
        Share of the requests with a fault.
    """

    def __init__(self, port: int, seed: int, rate: float) -> None:
        self._target, self._rate = port, rate
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._planned: list[tuple[str, str, str]] = []
        #: How often each fault came.
        self.faults: Counter[str] = Counter()
        #: Number of requests.
        self.requests = 0
        #: Exceptions of the proxy itself; connections that a client has closed do not count.
        self.errors: list[BaseException] = []
        self._server = _Server(self)
        self.port = self._server.server_port
        serve = partial(self._server.serve_forever, poll_interval=0.05)
        threading.Thread(target=serve, name="faulty-line", daemon=True).start()

    def plan(self, method: str, end: str, fault: str) -> None:
        """Let the next request with this method, and a path that ends so, have a fault."""
        with self._lock:
            self._planned.append((method, end, fault))

    def close(self) -> None:
        """Accept no more connections."""
        self._server.shutdown()
        self._server.server_close()

    def _fault(self, method: str, path: str) -> str:
        with self._lock:
            self.requests += 1
            fault = self._planned_fault(method, path.partition("?")[0])
            if not fault and self._random.random() < self._rate:
                fault = self._random.choices(list(FAULTS), list(FAULTS.values()))[0]
            if fault:
                self.faults[fault] += 1
            return fault

    def _planned_fault(self, method: str, path: str) -> str:
        for planned in self._planned:
            if planned[0] == method and path.endswith(planned[1]):
                self._planned.remove(planned)
                return planned[2]
        return ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request, or do what its fault says."""
        assert "chunked" not in handler.headers.get("Transfer-Encoding", "")
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        fault = self._fault(handler.command, handler.path)
        if not fault.endswith(" after") and _disturb(handler, fault):
            return
        answer = self._forward(handler, body)
        if fault.endswith(" after") and _disturb(handler, fault.removesuffix(" after")):
            return
        _answer(handler, *answer, fault=fault)

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        far = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "expect"}
            far.request(handler.command, handler.path, body or None, headers)
            answer = far.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            far.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, line: FaultyLine) -> None:
        self._line = line

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                line.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self._line.errors.append(error)


def _disturb(handler: BaseHTTPRequestHandler, fault: str) -> bool:
    """Answer with a fault, and return whether that was the answer."""
    if fault in ("500", "503"):
        content = _error("InternalError" if fault == "500" else "SlowDown")
        _answer(handler, int(fault), [], content)
    elif fault == "mute":
        time.sleep(MUTE)
        handler.close_connection = True
    elif fault == "reset":
        _reset(handler)
    else:
        return False
    return True


def _answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: list[tuple[str, str]],
    content: bytes,
    fault: str = "",
) -> None:
    if fault == "slow":
        time.sleep(SLOW)
    handler.send_response_only(status)
    for name, value in headers:
        if name.lower() not in ("content-length", "connection", "transfer-encoding"):
            handler.send_header(name, value)
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    # The answer to HEAD states the length of a body that it does not have.
    length = lengths[0] if handler.command == "HEAD" and lengths else str(len(content))
    handler.send_header("Content-Length", length)
    handler.end_headers()
    if fault == "reset in the body":
        handler.wfile.write(content[: len(content) // 2])
        _reset(handler)
        return
    for piece in _cut(content) if fault == "slow" else [content]:
        if fault == "slow":
            time.sleep(SLOW)
        handler.wfile.write(piece)


def _cut(content: bytes) -> list[bytes]:
    size = max(1, -(-len(content) // PARTS))
    return [content[at : at + size] for at in range(0, len(content), size)]


def _reset(handler: BaseHTTPRequestHandler) -> None:
    """Let the client see a reset: a socket that does not linger sends no end."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    # The server would announce the end of the stream first, which is no reset.
    os.close(handler.connection.detach())
