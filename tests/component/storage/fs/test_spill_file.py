from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

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
