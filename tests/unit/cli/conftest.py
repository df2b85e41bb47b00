from __future__ import annotations

from cli_fixtures import dasktune, path, results, written

__all__ = ["dasktune", "path", "results", "written"]
