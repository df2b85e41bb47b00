"""The storages on which experiments are attacked."""

from __future__ import annotations

from storage_fixtures import local, remote, storage_fixture

__all__ = ["local", "remote", "storage"]

storage = storage_fixture("local", "memory", "object", "s3")
