"""The storages on which experiments are attacked; tests/component/storage/ has a real S3, too."""

from __future__ import annotations

from storage_fixtures import local, remote, storage_fixture

__all__ = ["local", "remote", "storage"]

storage = storage_fixture("local", "memory", "object")
