from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle

sys.path.insert(0, str(Path(__file__).parent.parent / "cluster"))

import cluster_kit

# The workers of the storm start in another directory.
cloudpickle.register_pickle_by_value(cluster_kit)
