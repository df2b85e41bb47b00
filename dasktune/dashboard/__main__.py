"""``python -m dasktune.dashboard PATH``: show experiments in a browser until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

from dasktune.dashboard.server import serve
from dasktune.errors import TuneError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve what the command line asks for, and return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the command line by default.
    """
    parser = argparse.ArgumentParser(prog="python -m dasktune.dashboard", description=__doc__)
    parser.add_argument("path", help="an experiment's directory or URL, or one with several")
    parser.add_argument("--port", type=int, default=8788, help="where to listen (8788)")
    parser.add_argument("--address", default="localhost", help="at which interface (localhost)")
    parser.add_argument(
        "--origin", action="append", default=[], help="another host:port of it, as of a proxy"
    )
    parser.add_argument("--storage-options", type=json.loads, help="for fsspec, as JSON")
    asked = parser.parse_args(arguments)
    try:
        server = serve(
            asked.path,
            port=asked.port,
            address=asked.address,
            origins=asked.origin,
            storage_options=asked.storage_options,
        )
    except (TuneError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
