from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.fs import spill_file
from dasktune.storage.fs.spill_file import SpillFile


def test_blocks_beyond_the_limit_go_to_a_file_that_has_no_name(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = SpillFile(limit=10)
    blocks = [bytes([number]) * number for number in range(1, 9)]
    handles = [spill.write(block) for block in blocks]
    assert [isinstance(handle, bytes) for handle in handles] == [True] * 4 + [False] * 4
    assert [spill.read(handle) for handle in reversed(handles)] == blocks[::-1]
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_closed_with_its_owner(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = SpillFile(limit=0)
    spill.write(b"block")
    descriptor = spill._descriptor
    os.fstat(descriptor)
    del spill
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_full_disk_leaves_the_blocks_in_memory(monkeypatch: Any, caplog: pytest.LogCaptureFixture):
    spill = SpillFile(limit=0)
    first = spill.write(b"first")

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        handles = [spill.write(b"second"), spill.write(b"third")]
    assert [spill.read(one) for one in (first, *handles)] == [b"first", b"second", b"third"]
    assert [one.getMessage() for one in caplog.records if "TMPDIR" in one.getMessage()] == [
        caplog.records[0].getMessage()
    ]


def test_blocks_are_whole_though_the_system_reads_and_writes_less_than_it_is_asked_to(monkeypatch: Any):
    read, write = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda file, length, at: read(file, min(length, 3), at))
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: write(file, content[:2], at))
    spill = SpillFile(limit=0)
    blocks = [b"a block", b"", b"another block"]
    handles = [spill.write(block) for block in blocks]
    assert [spill.read(handle) for handle in handles] == blocks


def test_a_file_that_has_become_shorter_is_an_error():
    spill = SpillFile(limit=0)
    first, second = spill.write(b"first"), spill.write(b"second")
    os.ftruncate(spill._descriptor, second + 10)
    assert spill.read(first) == b"first"
    with pytest.raises(OSError, match="ends at byte"):
        spill.read(second)


def test_lengths_beyond_four_gigabytes_are_kept():
    assert spill_file._LENGTH.unpack(spill_file._LENGTH.pack(5 * 1024**3)) == (5 * 1024**3,)
