"""A line to an S3 server on which requests fail, by a seed, as they do in a large object store."""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

#: Faults and their weights. Those that end with "after" come when the server has carried out the
#: request: its client cannot know that.
FAULTS: Final = {
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
#: Seconds for which a mute line says nothing; clients must have a shorter timeout.
MUTE: Final = 5.0


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault</Message></Error>".encode()


class FaultyLine:
    """A proxy on a port of its own that leads to a server.

    Parameters
    ----------
    port : int
        The server's.
    seed : int
        Chooses the faults.
    rate : float
        Share of the requests with a fault.
    on_request : callable, optional
        Called with method and path before each request and after it, with "before" or "after".
    """

    def __init__(
        self,
        port: int,
        seed: int,
        rate: float,
        on_request: Callable[[str, str, str], None] = lambda when, method, path: None,
    ) -> None:
        self._target, self._rate, self._on_request = port, rate, on_request
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.faults: Counter[str] = Counter()
        self.requests = 0
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                line._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fault(self) -> str:
        with self._lock:
            self.requests += 1
            if self._random.random() >= self._rate:
                return ""
            fault = self._random.choices(list(FAULTS), list(FAULTS.values()))[0]
            self.faults[fault] += 1
            return fault

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        assert "chunked" not in handler.headers.get("Transfer-Encoding", "")
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        fault = self._fault()
        if not fault.endswith(" after") and self._disturb(handler, fault):
            return
        self._on_request("before", handler.command, handler.path)
        status, headers, content = self._forward(handler, body)
        self._on_request("after", handler.command, handler.path)
        if fault.endswith(" after") and self._disturb(handler, fault.removesuffix(" after")):
            return
        self._answer(handler, status, headers, content, fault)

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

    def _disturb(self, handler: BaseHTTPRequestHandler, fault: str) -> bool:
        """Answer with a fault, and say whether that was the answer."""
        if fault in ("500", "503"):
            content = _error("InternalError" if fault == "500" else "SlowDown")
            self._answer(handler, int(fault), [], content, "")
        elif fault == "mute":
            time.sleep(MUTE)
            handler.close_connection = True
        elif fault == "reset":
            self._reset(handler)
        else:
            return False
        return True

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
        fault: str,
    ) -> None:
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                handler.send_header(name, value)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        # The answer to HEAD has the length of what it does not have.
        length = lengths[0] if handler.command == "HEAD" and lengths else str(len(content))
        handler.send_header("Content-Length", length)
        handler.end_headers()
        if fault == "reset in the body":
            handler.wfile.write(content[: len(content) // 2])
            self._reset(handler)
            return
        for piece in self._cut(content) if fault == "slow" else [content]:
            if fault == "slow":
                time.sleep(0.2)
            handler.wfile.write(piece)

    @staticmethod
    def _cut(content: bytes) -> list[bytes]:
        size = max(1, len(content) // 5)
        return [content[at : at + size] for at in range(0, len(content), size)]

    @staticmethod
    def _reset(handler: BaseHTTPRequestHandler) -> None:
        """Let the client see a reset: a socket that does not linger sends no end."""
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.close_connection = True
        # The server would announce the end of the stream first, which is no reset.
        os.close(handler.connection.detach())
