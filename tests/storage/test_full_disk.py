"""A disk that is full for a while costs time, not records."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Fills a disk of a megabyte, writes to it, and makes room when the writers have met the failure.
PROGRAM = """
import logging, os, sys, threading
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.fs.storage import Storage

met = threading.Semaphore(0)
class Handler(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        met.release()
logging.getLogger("dasktune").addHandler(Handler())
disk = sys.argv[1]
storage = Storage(f"{disk}/exp").with_retry(120.0)
writer = JournalWriter(storage, 1)
with open(f"{disk}/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as error:
        print(error.strerror)
for number in range(50):
    writer.append({"n": number, "padding": "x" * 1000})
print("durable", writer.commit(), "failing", writer.failing_since is not None)

def say(text):
    # In one piece: two threads print at the same time.
    sys.stdout.write(f"{text}\\n")

def commit():
    record = CheckpointStore(storage).commit({"x": bytes(200_000)}, trial_dir="a", index=0,
                                             incarnation=1, iteration=1, metrics={})
    say(f"committed {len(storage.read_bytes(record.path, 'x'))}")

thread = threading.Thread(target=commit)
thread.start()
met.acquire()  # by the journal
met.acquire()  # and by the checkpoint
for number in range(50, 60):
    writer.append({"n": number})
writer.commit()
os.unlink(f"{disk}/filler")
say(f"durable {writer.commit(force=True)}")
thread.join()
writer.close()
assert [one["n"] for one in read_journal(storage)] == list(range(60))
print("whole")
"""


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare makes the small disk")
    mount = [unshare, "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"']
    if subprocess.run([*mount, tmp_path, "true"], capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    command = [*mount, tmp_path, sys.executable, "-c", PROGRAM, tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[:2] == ["No space left on device", "durable 0 failing True"]
    assert sorted(lines[2:]) == ["committed 200000", "durable 60", "whole"]
    assert run.stderr.count("retried until") == 2
