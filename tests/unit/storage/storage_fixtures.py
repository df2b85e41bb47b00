"""Storages on which tests of units and of components run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fake_object_store import FakeObjectStore

from dasktune.storage.fs.storage import Storage

fsspec.register_implementation("fakes3", FakeObjectStore, clobber=True)


def storage_fixture(*kinds: str) -> Callable[..., Any]:
    """Return a fixture of "local", "memory", "object" or "s3" storages; "s3" starts a server."""

    @pytest.fixture(params=kinds)
    def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
        """An empty directory on each kind of storage."""
        if request.param == "local":
            yield Storage(str(tmp_path / "exp"))
        elif request.param == "memory":
            here = Storage(f"memory://{uuid4().hex}/exp")
            yield here
            here.remove_tree()
        elif request.param == "s3":
            yield request.getfixturevalue("s3").storage()
        else:
            FakeObjectStore.reset()
            yield Storage("fakes3://bucket/exp")
            FakeObjectStore.reset()

    return storage


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "exp"))


@pytest.fixture
def remote() -> Iterator[Storage]:
    FakeObjectStore.reset()
    yield Storage("fakes3://bucket/exp")
    FakeObjectStore.reset()
