"""A simulated slow store on a local disk: ``slow:///some/path``. Importing it registers it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

__all__ = ["SlowStore"]


class SlowStore(AbstractFileSystem):
    """Delays every request, and every byte that is written.

    Parameters
    ----------
    latency : float, default=0
        Seconds that each request takes.
    bandwidth : float, default=inf
        Bytes a second.
    """

    protocol = "slow"

    def __init__(self, latency: float = 0.0, bandwidth: float = float("inf"), **options: Any):
        super().__init__(**options)
        self._latency = latency
        self._bandwidth = bandwidth

    def wait(self, size: int = 0) -> None:
        """Sleep as long as a request with `size` bytes takes; other threads can run meanwhile."""
        time.sleep(self._latency + size / self._bandwidth)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            self.wait()
            return open(path, mode)
        os.makedirs(self._parent(path), exist_ok=True)
        return _Upload(self, path, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self._open(path, "xb" if mode == "create" else "wb") as stream:
            stream.write(value)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.wait()
        return self._info(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self.wait()
        path = self._strip_protocol(path)
        found = [self._info(f"{path}/{name}") for name in sorted(os.listdir(path))]
        return found if detail else [one["name"] for one in found]

    def rm_file(self, path: str) -> None:
        self.wait()
        os.unlink(path)

    @staticmethod
    def _info(path: str) -> dict[str, Any]:
        local = Path(path)
        kind = "directory" if local.is_dir() else "file"
        return {"name": path, "size": local.stat().st_size, "type": kind}


class _Upload:
    """A file whose bytes are sent when it is closed."""

    def __init__(self, store: SlowStore, path: str, mode: str) -> None:
        self._store = store
        self._file = open(path, mode)  # noqa: SIM115 - closed in its own `close`

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._file:
            self._store.wait(self._file.tell())


fsspec.register_implementation("slow", SlowStore, clobber=True)
