"""An experiment whose journal is damaged is refused, and can be restored to its last good state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_restored_experiments import Lab, lab, once_each

from dasktune.cli import main
from dasktune.dashboard.model.load import load_projection
from dasktune.errors import ConfigError, StorageError
from dasktune.results.journal_repair import diagnose_journal, repair_journal
from dasktune.results.journal_trials import load_trials
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.columnar import numbered, split_number
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.journal.segments import segment_name
from dasktune.storage.journal.snapshots import Snapshots
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.tuner.tuner import Tuner

pytestmark = pytest.mark.usefixtures("quick_bandit")

JOURNAL = segment_name(1, 0)


@pytest.fixture
def killed(tmp_path: Path) -> Lab:
    """An experiment on a disk whose driver died, with snapshots."""
    place = lab("damaged")
    place.storage = Storage(tmp_path / "exp")
    place.checkpoint_period = 2.0
    ExperimentStore(place.storage).create({"metric": "loss", "mode": "min"})
    with pytest.raises(Exception):  # noqa: B017, PT011 - the driver dies
        place.begin(72)
    assert place.storage.names("snapshots")
    return place


def lines_of(storage: Storage) -> list[bytes]:
    return storage.read_bytes(JOURNAL).splitlines(keepends=True)


def write_lines(storage: Storage, lines: list[bytes]) -> None:
    storage.write_bytes(JOURNAL, b"".join(lines))


def test_an_experiment_that_has_lost_its_journal_is_refused(killed: Lab):
    storage = killed.storage
    assert Tuner.can_restore(str(storage))
    killed.restore()
    storage.remove_tree("journal")
    assert not Tuner.can_restore(str(storage))
    for read in (killed.restore, lambda: load_trials(storage), lambda: load_projection(storage)):
        with pytest.raises(StorageError, match=r"has lost its journal: .* Put the directory journal/ back"):
            read()


def test_trials_are_not_read_from_a_snapshot_that_is_newer_than_the_journal(killed: Lab, caplog: Any):
    storage = killed.storage
    newest, older = Snapshots(storage).newest_first()
    # A power cut has kept both snapshots, and lost the records before the newest one.
    header, *lines = lines_of(storage)
    while end_of(storage) >= newest.position:
        lines.pop()
        write_lines(storage, [header, *lines])
    assert end_of(storage) >= older.position
    found = [(one.trial_id, one.status, one.history) for one in load_trials(storage)]
    assert "it is newer than the journal" in caplog.text
    storage.remove_tree("snapshots")
    assert found == [(one.trial_id, one.status, one.history) for one in load_trials(storage)]


def test_a_snapshot_that_does_not_fit_the_journal_costs_no_trials(killed: Lab, caplog: Any):
    storage = killed.storage
    expected = [one.trial_id for one in load_trials(storage)]
    newest = next(Snapshots(storage).newest_first())
    # Records that follow it are about trials that it lacks.
    Snapshots(storage).write(replace(newest, state={**newest.state, "trials": []}))
    caplog.clear()
    assert [one.trial_id for one in load_trials(storage)] == expected


def end_of(storage: Storage) -> int:
    return sum(1 for _ in JournalReader(storage))


@pytest.mark.parametrize("kept", ["journal", "snapshots", "trials", "tuner.json"])
def test_no_experiment_begins_among_the_rest_of_another(killed: Lab, kept: str):
    storage = killed.storage
    storage.write_bytes("trials/a/params.json", b"{}")
    for name in storage.names():
        if name != kept:
            storage.remove_tree(name) if Path(storage.path(name)).is_dir() else storage.remove(name)
    with pytest.raises(
        StorageError, match=rf"has {kept}/? of another experiment, which has lost its experiment.json"
    ):
        ExperimentStore(storage).create({})


@pytest.mark.parametrize("damage", ["missing", "twice", "last twice", "broken"])
def test_a_repair_restores_the_last_good_state(killed: Lab, damage: str, capsys: Any):
    storage = killed.storage
    intact, lines = list(read_journal(storage)), lines_of(storage)
    assert diagnose_journal(storage).damages == []
    starts = [
        at for at, line in enumerate(lines) if b'"do":"StartTrial"' in line or b'"RestoreTrial"' in line
    ]
    at = starts[len(starts) // 2]
    if damage == "last twice":
        at = len(lines) - 1
        lines = [*lines[: starts[-1] + 1]]
        intact, at = intact[: len(lines) - 1], starts[-1]
    change = {"missing": [], "broken": [b'{"event":\n']}.get(damage, [lines[at], lines[at]])
    write_lines(storage, [*lines[:at], *change, *lines[at + 1 :]])
    damaged = storage.read_bytes(JOURNAL)
    if damage == "broken":
        # A snapshot is newer: what precedes it is only counted.
        assert killed.restore().end.position == len(intact)
    else:
        with pytest.raises(StorageError):
            killed.restore()

    assert main(["repair", "--dry-run", str(storage.path())]) == 1
    said = capsys.readouterr().out
    assert ("Try Tuner.restore() first" in said) == (damage in ("missing", "broken"))
    assert f"line {at + 1 + (damage != 'broken' and damage != 'missing')} of {JOURNAL}" in said
    assert storage.names("journal") == ["000001-000000.jsonl"]
    assert main(["repair", str(storage.path())]) == 0
    assert storage.read_bytes(JOURNAL) == damaged
    good = list(read_journal(storage))
    assert good == intact[: len(good)]
    assert len(good) == (len(intact) if "twice" in damage else at - 1)
    assert main(["repair", str(storage.path())]) == 0
    assert "the journal is in order" in capsys.readouterr().out

    killed.checkpoints.clear()
    experiment = killed.resume(resume=None)
    assert experiment.finished
    once_each(experiment)


def test_a_missing_event_that_no_number_shows_is_found_by_what_follows(killed: Lab):
    storage = killed.storage
    lines = lines_of(storage)
    at = next(at for at, line in enumerate(lines) if b'"Suggested"' in line)
    rest = [split_number(line) for line in lines[at + 1 :]]
    write_lines(storage, lines[:at] + [numbered(line, number - 1) for line, number in rest])
    found = diagnose_journal(storage)
    assert "was never added: a line is missing" in found.damages[0]
    assert found.damages[0].startswith(f"line {found.kept + 2} of {JOURNAL}: trial ")
    assert at - 1 <= found.kept < len(lines) / 2


def test_a_damaged_header_costs_only_its_epoch(killed: Lab):
    before = list(read_journal(killed.storage))
    killed.resume()
    name = segment_name(2, 0)
    killed.storage.write_bytes(name, killed.storage.read_bytes(name).replace(b"$journal", b"$jour"))
    with pytest.raises(StorageError, match=r"is not a header"):
        killed.restore()
    found = repair_journal(killed.storage)
    assert found.kept == len(before)
    assert list(read_journal(killed.storage)) == before
    killed.restore()


def test_records_are_dropped_on_request(killed: Lab):
    with pytest.raises(ConfigError, match=r"keep must be a number of records"):
        diagnose_journal(killed.storage, keep=-1)
    found = repair_journal(killed.storage, keep=20)
    assert 0 < found.kept <= 20
    assert len(list(read_journal(killed.storage))) == found.kept
    killed.restore()


def test_nothing_is_repaired_while_a_driver_leads(killed: Lab):
    write_lines(killed.storage, [*lines_of(killed.storage), b"broken\n"])
    with LeaderLock(killed.storage), pytest.raises(StorageError, match=r"lead"):
        repair_journal(killed.storage)
    assert killed.storage.names("journal") == ["000001-000000.jsonl"]


def test_a_journal_of_which_nothing_can_be_read_is_named(killed: Lab):
    write_lines(killed.storage, [b"broken\n"])
    with pytest.raises(StorageError, match=r"nothing of the journal of .* can be restored"):
        diagnose_journal(killed.storage)
