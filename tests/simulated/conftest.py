"""What simulated experiments share; and benchmarks are found by a bare `pytest`, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from numpy.random import default_rng

from dasktune.schedulers import pb2
from dasktune.schedulers.population_based.gp_bandit import BanditState

# At the end, so that the checkout does not hide what is installed.
sys.path.append(str(Path(__file__).parents[2]))


def at_once(situation: BanditState) -> list[tuple[float, ...]]:
    """Return points that any other situation would change, and that mean nothing."""
    rng = default_rng(crc32(repr(situation).encode()))
    dimensions = len(situation.changes[0].point)
    return [tuple(rng.random(dimensions).tolist()) for _ in situation.rewards]


@pytest.fixture(scope="module")
def quick_bandit() -> Iterator[None]:
    """Spare experiments the second that each Gaussian process takes, where it does not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pb2, "suggest_points", at_once)
        yield
