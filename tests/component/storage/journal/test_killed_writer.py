"""A process that is killed in the middle of its writes leaves only whole things behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dasktune.errors import CheckpointNotFound
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.segments import next_epoch
from dasktune.trial.checkpoint_record import CheckpointRecord

WRITER = """
import sys
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.fs.storage import Storage

storage = Storage(sys.argv[1])
store, journal = CheckpointStore(storage), JournalWriter(storage, 1)
index = 0
while True:
    files = {f"part{n}": bytes([index % 256]) * 300_000 for n in range(3)}
    record = store.commit(
        files, trial_dir="a", index=index, incarnation=1, iteration=index, metrics={}
    )
    position = journal.append({"checkpoint": record.to_json(), "padding": "x" * 5000})
    assert journal.commit() == position
    print(position, flush=True)
    index += 1
"""


@pytest.mark.parametrize("kill_after", [1, 2, 5, 9])
def test_nothing_torn_is_ever_read(tmp_path: Path, kill_after: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(kill_after):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines(keepends=True)
    whole = [int(line) for line in rest if line.endswith("\n")]
    acknowledged = max([acknowledged, *whole])

    storage = Storage(str(tmp_path))
    store = CheckpointStore(storage)
    records = [CheckpointRecord.from_json(one["checkpoint"]) for one in read_journal(storage)]
    assert acknowledged <= len(records) <= acknowledged + 1
    for record in records:
        part = Path(store.load(record).path, "part2").read_bytes()
        assert part == bytes([record.index]) * 300_000

    # Of what is not in the journal, the last may be whole; it is never half.
    for name in storage.names("trials", "a")[len(records) :]:
        index = int(name[11:17])
        record = CheckpointRecord(path=f"trials/a/{name}", index=index, iteration=index)
        try:
            store.load(record)
        except CheckpointNotFound:
            assert store.remove_stale("a", incarnation=2, first_index=index + 1) == [record.path]

    successor = JournalWriter(storage, next_epoch(storage))
    assert successor.append({"next": True}) == len(records) + 1
    successor.close()
    assert len(list(read_journal(storage))) == len(records) + 1
