"""Finding the experiments in a directory whose storage is slow."""

from __future__ import annotations

import re

import pytest
from projection_kit import FailingStorage

from dasktune.dashboard.server.experiment_source import ExperimentFolder
from dasktune.dashboard.server.listing.directory_scan import DirectoryScan
from dasktune.storage.experiment.experiment_store import SPEC_FILE


class SlowStorage:
    """A directory in which each request takes a second of a clock."""

    def __init__(self, experiments: list[str], others: list[str]) -> None:
        self.now, self.requests = 0.0, list[str]()
        self.experiments, self.others = set(experiments), set(others)
        self.is_down = False

    def clock(self) -> float:
        return self.now

    def with_retry(self, seconds: float) -> SlowStorage:
        assert seconds == 0
        return self

    def names(self) -> list[str]:
        self._answer("names")
        return sorted(self.experiments | self.others)

    def child(self, name: str) -> SlowStorage:
        self._child = name
        return self

    def exists(self, file: str) -> bool:
        self._answer(self._child)
        return self._child in self.experiments

    def _answer(self, request: str) -> None:
        self.now += 1.0
        self.requests.append(request)
        if self.is_down:
            raise ConnectionError("no answer")

    def __str__(self) -> str:
        return "slow://place"


def scanned(storage, scan):
    """Scan until all entries are looked at; return the requests that it took."""
    storage.requests.clear()
    while scan.scan_some(storage.now):
        pass
    return list(storage.requests)


def test_what_has_been_found_is_there_before_all_entries_are_looked_at():
    storage = SlowStorage(["a", "b", "c"], ["x"])
    scan = DirectoryScan(storage, storage.clock)
    found = []
    while scan.scan_some(storage.now):
        found.append(list(scan.experiments))
    assert found == [[], ["c"], ["c", "b"]]
    assert (scan.experiments, scan.read_at, scan.error) == (["c", "b", "a"], 0.0, "")


def test_an_experiment_is_looked_at_once_and_new_names_come_before_other_entries():
    storage = SlowStorage(["a", "b"], ["w", "x"])
    scan = DirectoryScan(storage, storage.clock)
    assert scanned(storage, scan) == ["names", "x", "w", "b", "a"]
    storage.experiments |= {"c", "x"}
    storage.experiments.remove("a")
    assert scanned(storage, scan) == ["names", "c", "x", "w"]
    assert scan.experiments == ["x", "c", "b"]


def test_of_very_many_experiments_only_those_are_looked_at_that_are_listed():
    storage = SlowStorage([f"e{number:04d}" for number in range(2_000)], [])
    scan = DirectoryScan(storage, storage.clock)
    assert len(scanned(storage, scan)) < 600
    assert scan.experiments == [f"e{number:04d}" for number in range(1_500, 2_000)][::-1]


def test_a_directory_that_cannot_be_read_keeps_the_last_list_and_its_age():
    storage = SlowStorage(["a"], [])
    scan = DirectoryScan(storage, storage.clock)
    scanned(storage, scan)
    storage.is_down = True
    assert scanned(storage, scan) == ["names"]
    assert (scan.experiments, scan.read_at) == (["a"], 0.0)
    assert "no answer" in scan.error
    storage.is_down = False
    scanned(storage, scan)
    assert (scan.error, scan.read_at) == ("", 3.0)


@pytest.mark.parametrize(
    ("age", "is_down", "note"),
    [
        (None, False, ""),
        (9.0, False, ""),
        (27.0, False, "as of 20 s ago"),
        (27.0, True, "cannot be read again: .*no access.*; shown as of 20 s ago"),
        (1.0, True, "cannot be read again: .*no access.*; shown as it was"),
    ],
)
def test_the_list_says_how_old_it_is(tmp_path, age, is_down, note):
    storage, now = FailingStorage(tmp_path), [1_000.0]
    # Of a directory that is an experiment no list is read.
    storage.write_bytes(SPEC_FILE if age is None else f"one/{SPEC_FILE}", b"{}")
    folder = ExperimentFolder(storage, clock=lambda: now[0])
    now[0] += age or 0.0
    if is_down:
        storage.is_down.set()
        folder.refresh()
    assert re.fullmatch(note, folder.list_note)
