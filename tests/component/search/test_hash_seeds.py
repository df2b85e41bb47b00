"""Draws in processes with other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys

HASH_PROBE = """
from numpy.random import SeedSequence
from dasktune.search.basic_variant import BasicVariantGenerator
from dasktune.search.search_algorithm import SearchSpec
from dasktune.space import choice, grid_search, uniform
space = {name: uniform(0, 1) for name in "zyx"} | {"m": choice([{"p": uniform(0, 1)}, "q"])}
space |= {"g": grid_search(["r", "s"]), "h": grid_search([1, 2])}
search = BasicVariantGenerator()
search.setup(SearchSpec(space=space, num_samples=2, metric=None, mode=None, seed=SeedSequence(0)))
print([search.next_trial(str(i)) for i in range(8)])
"""


def test_hash_seeds_change_nothing():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", HASH_PROBE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "finished=True" not in outputs.pop()
