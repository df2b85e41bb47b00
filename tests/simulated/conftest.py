"""What `python -m pytest` finds by itself, and a bare `pytest` does not: the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end, lest the checkout hide what is installed.
sys.path.append(str(Path(__file__).parents[2]))
