"""An object store in memory: whole objects only, no rename, no append, no directories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile


class FakeObjectStore(AsyncFileSystem):
    protocol = "fakes3"
    objects: ClassVar[dict[str, bytes]] = {}
    #: Exceptions that the next writes raise, in order; None lets one through.
    failures: ClassVar[list[Exception | None]] = []
    #: Whether a write that fails was carried out all the same.
    answer_lost: ClassVar[bool] = False
    #: How often the client of the store tries a write before it raises the failure.
    attempts: ClassVar[int] = 1
    #: Whether it answers at all.
    mute: ClassVar[bool] = False
    #: Called before each operation with its kind ("read", "write", "open", "info", "list" or
    #: "remove") and path. It may raise what the store answers, or change `objects` as another
    #: process would.
    before: ClassVar[Callable[[str, str], None] | None] = None

    @classmethod
    def reset(cls) -> None:
        cls.objects, cls.failures, cls.answer_lost, cls.mute = {}, [], False, False
        cls.before, cls.attempts = None, 1

    @classmethod
    def _begin(cls, operation: str, path: str) -> None:
        if cls.before is not None:
            cls.before(operation, path)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        cls = type(self)
        if cls.mute:
            await asyncio.sleep(3600)
        path = self._strip_protocol(path)
        for _ in range(1, cls.attempts):
            try:
                return self._put(path, value, mode)
            except FileExistsError:
                raise
            except OSError:
                pass
        return self._put(path, value, mode)

    def _put(self, path: str, value: bytes, mode: str) -> None:
        cls = type(self)
        self._begin("write", path)
        failure = cls.failures.pop(0) if cls.failures else None
        if failure is not None and not cls.answer_lost:
            raise failure
        if mode == "create" and path in cls.objects:
            raise FileExistsError(path)
        cls.objects[path] = bytes(value)
        if failure is not None:
            raise failure

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        self._begin("read", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        self._begin("info", path)
        if path in self.objects:
            return {"name": path, "size": len(self.objects[path]), "type": "file"}
        if any(name.startswith(path + "/") for name in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self._begin("list", self._strip_protocol(path))
        prefix = self._strip_protocol(path) + "/"
        below = [name[len(prefix) :] for name in self.objects if name.startswith(prefix)]
        if not below:
            raise FileNotFoundError(path)
        found = sorted({prefix + name.partition("/")[0] for name in below})
        return [await self._info(name) for name in found] if detail else found

    async def _find(self, path: str, **_: Any) -> list[str]:
        self._begin("list", self._strip_protocol(path))
        prefix = self._strip_protocol(path) + "/"
        return sorted(name for name in self.objects if name.startswith(prefix))

    async def _rm_file(self, path: str, **_: Any) -> None:
        cls = type(self)
        self._begin("remove", self._strip_protocol(path))
        failure = cls.failures.pop(0) if cls.failures else None
        if failure is not None:
            raise failure
        if cls.objects.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:
        self._begin("open", self._strip_protocol(path))
        if mode != "wb":
            raise NotImplementedError(mode)
        return _Upload(self, path, mode, block_size)


class _Upload(AbstractBufferedFile):
    """Becomes visible when it is closed, unless it was discarded."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.append(self.buffer.getvalue())
        if final:
            self.fs.pipe_file(self.path, b"".join(self.parts))
        return True
