"""A store on a disk that several processes share and that counts as remote; to be preloaded, too.

URLs are ``disk:///some/path``. With the storage option ``gate`` a file of the name ``slow`` is not
written before the file at that path exists.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem


class DiskStore(AbstractFileSystem):
    protocol = "disk"

    def __init__(self, gate: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.gate = gate

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode != "rb":
            os.makedirs(self._parent(path), exist_ok=True)
            if self.gate and path.endswith("/slow"):
                while not os.path.exists(self.gate):
                    time.sleep(0.01)
        return open(path, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self._open(path, "xb" if mode == "create" else "wb") as stream:
            stream.write(value)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        kind = "directory" if os.path.isdir(path) else "file"
        return {"name": path, "size": os.stat(path).st_size, "type": kind}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        # As in an object store, there are no empty directories.
        found = [f"{path}/{name}" for name in sorted(os.listdir(path))]
        found = [name for name in found if os.path.isfile(name) or any(_files(name))]
        return [self.info(name) for name in found] if detail else found

    def rm_file(self, path: str) -> None:
        os.unlink(path)


def _files(root: str) -> Any:
    return (path for path in Path(root).rglob("*") if path.is_file())


def files_below(root: Path) -> list[str]:
    """Return the sorted names of all files below a directory, relative to it."""
    return sorted(str(path.relative_to(root)) for path in _files(str(root)))


fsspec.register_implementation("disk", DiskStore, clobber=True)
