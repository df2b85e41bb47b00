"""The rows that a bracket trains on, and those that it holds out."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from dasktune.sklearn.incremental.blocks import Block, LocalBlocks, TrainTestBlocks


def test_each_bracket_trains_on_all_that_it_does_not_hold_out():
    holdouts = [TrainTestBlocks((seed, seed + 1), 0.3) for seed in (1, 5)]
    rows = np.arange(40)
    blocks = LocalBlocks([Block(rows[:20], None), Block(rows[20:], None)], holdouts)
    for bracket in (0, 1):
        trained = [row for number in (0, 1) for row in blocks.training(bracket, number).X]
        assert sorted([*trained, *blocks.held_out(bracket).X]) == list(rows)
