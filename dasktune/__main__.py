"""``python -m dasktune``: the command line."""

from __future__ import annotations

import sys

from dasktune.cli import main

# A worker process of a local cluster imports the main module of its parent.
if __name__ == "__main__":
    sys.exit(main())
