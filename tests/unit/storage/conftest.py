from __future__ import annotations

from storage_fixtures import local, remote, storage

__all__ = ["local", "remote", "storage"]
