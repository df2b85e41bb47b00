"""``python -m dasktune``: the command line."""

from __future__ import annotations

import sys

from dasktune.cli import main

# Worker processes of a local cluster import the main module, and must not run the command again.
if __name__ == "__main__":
    sys.exit(main())
