"""A real S3 server on the loopback interface, and a line to it that can be disturbed."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from free_port import free_port

from dasktune.storage.fs.storage import Storage

#: What must never be found in any file or log.
KEY = "AKIAKEYOFTHETEST"
SECRET = "secret-of-the-test-2f1c"

#: A guard against hanging, not an expectation.
PATIENCE = 90.0

_UNAVAILABLE = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>disturbed</Message></Error>"


#: moto's server looks whether an object exists and then writes it, in several threads. S3 does both
#: in one step.
SERVER = """
import sys, threading
from moto.s3.responses import S3Response
from moto.server import main
put, lock = S3Response._key_response_put, threading.Lock()
def put_alone(*args, **options):
    with lock:
        return put(*args, **options)
S3Response._key_response_put = put_alone
main(sys.argv[1:])
"""


class S3Server:
    """moto's server, as a process."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(self.port)]
        self._log = directory / "s3-server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while not self._is_up():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "the S3 server does not come up"
            time.sleep(0.05)

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def options(self, port: int | None = None) -> dict[str, Any]:
        """Return storage options for this server, or for another port that leads to it."""
        url = f"http://127.0.0.1:{port or self.port}"
        options: dict[str, Any] = {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        if port is not None:
            # The client would try for seconds before it reports that a line is disturbed.
            options["config_kwargs"] = {"retries": {"max_attempts": 0}}
        return options

    def storage(self, port: int | None = None) -> Storage:
        """Return an empty directory in a bucket of its own."""
        bucket = f"bucket-{uuid4().hex}"
        Storage(f"s3://{bucket}", self.options()).fs.call_s3("create_bucket", Bucket=bucket)
        return Storage(f"s3://{bucket}/exp", self.options(port))

    def uploads(self, storage: Storage) -> list[str]:
        """Return the objects of uploads in parts that were neither ended nor aborted."""
        bucket = storage.path().partition("/")[0]
        answer = storage.fs.call_s3("list_multipart_uploads", Bucket=bucket)
        return [upload["Key"] for upload in answer.get("Uploads", [])]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Line:
    """A proxy on a port of its own that leads to a server, until it is disturbed.

    Parameters
    ----------
    port : int
        The server's.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = free_port()
        self._changed = threading.Condition()
        self._mode = "open"
        self._sockets: set[socket.socket] = set()
        #: Connections that were made, whatever became of them.
        self.accepted = 0
        self._listener = self._listen()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        return listener

    def set(self, mode: str) -> None:
        """Be "open", "refused", "mute", "slow", or answer with an "error"."""
        assert mode in ("open", "refused", "mute", "slow", "error")
        with self._changed:
            before, self._mode = self._mode, mode
            self._changed.notify_all()
        if mode == before:
            return
        if mode == "refused":
            # Closing alone does not wake up who waits for a connection.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for one in list(self._sockets):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        elif before == "refused":
            self._listener = self._listen()

    def close(self) -> None:
        self._closed = True
        self.set("refused")

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.01)
                continue
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            pair = {near, far}
            self._sockets |= pair
            with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
                selector.register(near, selectors.EVENT_READ, far)
                selector.register(far, selectors.EVENT_READ, near)
                while self._pass_on(selector, near):
                    pass
            self._sockets -= pair

    def _pass_on(self, selector: selectors.BaseSelector, near: socket.socket) -> bool:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(65536)
            with self._changed:
                self._changed.wait_for(lambda: self._mode != "mute")
                mode = self._mode
            if not data or mode == "refused":
                return False
            if mode == "error" and key.fileobj is near:
                head = f"HTTP/1.1 500 x\r\nContent-Length: {len(_UNAVAILABLE)}\r\n"
                near.sendall(head.encode() + b"Connection: close\r\n\r\n" + _UNAVAILABLE)
                return False
            if mode == "slow":
                time.sleep(0.1)
            key.data.sendall(data)
        return True


def found_in(root: Path, secret: str) -> list[str]:
    """Return the files below a directory that hold a text."""
    return [
        os.path.join(directory, name)
        for directory, _, names in os.walk(root)
        for name in names
        if secret.encode() in Path(directory, name).read_bytes()
    ]
