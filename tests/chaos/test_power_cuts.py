"""A power cut costs what was not synced, and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from checker import check_ended
from mortal_store import Died
from power_cuts import Disk, Lab
from storm import step_in, undisturbed

from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

pytestmark = pytest.mark.chaos

SEEDS = int(os.environ.get("CHAOS_SEEDS", "0"))
#: Experiments of a seed. The power fails up to four times in each.
EXPERIMENTS = 100 if SEEDS else 25


@pytest.mark.parametrize("seed", range(SEEDS or 1))
def test_after_a_power_cut_an_experiment_resumes_from_what_was_synced(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    lost: dict[str, int] = {}
    for number in range(EXPERIMENTS):
        disk = Disk(str(tmp_path / str(number)), EXPERIMENTS * seed + number)
        monkeypatch.setattr(os, "fsync", disk.sync)
        live(Storage(disk.root), disk, disk.random)
        lost |= disk.losses
    assert set(lost) == {"journal", "vanishes", "is empty", "is torn", "has zeros", "stays"}


def live(storage: Storage, disk: Disk, chance: random.Random) -> None:
    """Let an experiment go through power cuts, and check what is left."""
    lab = Lab(storage, chance.randrange(100))
    known: list[dict[str, Any]] = []
    deaths = chance.randint(1, 4)
    for death in range(deaths + 1):
        lives = chance.randint(0, 60) if death < deaths else 10**9
        try:
            if death:
                lab.resume(lives)
            else:
                lab.begin(lives)
            break
        except Died:
            assert list(read_journal(storage))[: len(known)] == known
            disk.cut_power(storage)
            known = list(read_journal(storage))
    assert list(read_journal(storage))[: len(known)] == known
    # A checkpoint is not synced. What the power cut has damaged may still be among those that are
    # kept: it is found when it is loaded.
    violations = check_ended(storage, undisturbed, step_in)
    assert [one for one in violations if not any(path in str(one) for path in disk.damaged)] == []
