from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.fs.spill_file import SpillFile


@pytest.fixture
def opened(monkeypatch: Any) -> list[int]:
    """The descriptors of the files that are opened, in order."""
    descriptors: list[int] = []
    duplicate = os.dup

    def noted(descriptor: int) -> int:
        descriptors.append(duplicate(descriptor))
        return descriptors[-1]

    monkeypatch.setattr(os, "dup", noted)
    return descriptors


def test_blocks_beyond_the_limit_go_to_a_file_that_has_no_name(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = SpillFile(limit=10)
    blocks = [bytes([number]) * number for number in range(1, 9)]
    handles = [spill.write(block) for block in blocks]
    assert [isinstance(handle, bytes) for handle in handles] == [True] * 4 + [False] * 4
    assert [spill.read(handle) for handle in reversed(handles)] == blocks[::-1]
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_closed_with_its_owner(tmp_path: Path, monkeypatch: Any, opened: list[int]):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = SpillFile(limit=0)
    spill.write(b"block")
    [descriptor] = opened
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


def test_the_file_is_tried_again_when_the_blocks_have_grown(monkeypatch: Any):
    spill = SpillFile(limit=10)

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        handles = [spill.write(b"12345678"), spill.write(b"87654321")]
    handles += [spill.write(b"ok"), spill.write(b"and the last")]
    assert [isinstance(handle, bytes) for handle in handles] == [True, True, True, False]
    assert list(map(spill.read, handles)) == [b"12345678", b"87654321", b"ok", b"and the last"]


def no_descriptor(*arguments: Any, **options: Any) -> Any:
    raise OSError(24, "Too many open files")


def no_directory(*arguments: Any, **options: Any) -> Any:
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.parametrize("open_file", [no_descriptor, no_directory])
def test_a_file_that_cannot_be_opened_leaves_the_blocks_in_memory(
    open_file: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tempfile, "TemporaryFile", open_file)
    monkeypatch.setattr(tempfile, "gettempdir", no_directory)
    spill = SpillFile(limit=0)
    handles = [spill.write(b"first"), spill.write(b"second")]
    assert list(map(spill.read, handles)) == [b"first", b"second"]
    (warning,) = caplog.records
    assert "TMPDIR" in warning.getMessage()
    assert "The journal has all of them" in warning.getMessage()


def test_a_directory_that_is_deleted_costs_nothing(tmp_path: Path, monkeypatch: Any):
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    opened, unopened = SpillFile(limit=0), SpillFile(limit=0)
    handles = [opened.write(b"first")]
    directory.rmdir()
    handles.append(opened.write(b"second"))
    assert list(map(opened.read, handles)) == [b"first", b"second"]
    assert unopened.read(unopened.write(b"third")) == b"third"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_overwrite_what_its_parent_writes():
    spill = SpillFile(limit=0)
    first = spill.write(b"first")
    child = os.fork()
    if not child:
        try:
            its_own = spill.write(b"of the child")
            found = (spill.read(first), spill.read(its_own)) == (b"first", b"of the child")
            os._exit(0 if found else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    second = spill.write(b"second")
    assert [spill.read(first), spill.read(second)] == [b"first", b"second"]


def test_blocks_are_whole_though_the_system_reads_and_writes_less_than_it_is_asked_to(monkeypatch: Any):
    read, write = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda file, length, at: read(file, min(length, 3), at))
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: write(file, content[:2], at))
    spill = SpillFile(limit=0)
    blocks = [b"a block", b"", b"another block"]
    handles = [spill.write(block) for block in blocks]
    assert [spill.read(handle) for handle in handles] == blocks


def test_a_file_that_has_become_shorter_is_an_error(opened: list[int]):
    spill = SpillFile(limit=0)
    first, second = spill.write(b"first"), spill.write(b"second")
    os.ftruncate(opened[0], second + 10)
    assert spill.read(first) == b"first"
    with pytest.raises(OSError, match="ends at byte"):
        spill.read(second)


def test_lengths_beyond_four_gigabytes_are_kept(monkeypatch: Any, opened: list[int]):
    spill = SpillFile(limit=0)
    handle: Any = spill.write(b"block")
    read, asked = os.pread, []
    assert read(opened[0], 8, handle) == (5).to_bytes(8, "little")
    os.pwrite(opened[0], (5 * 1024**3).to_bytes(8, "little"), handle)

    def noted(file: int, length: int, at: int) -> bytes:
        asked.append(length)
        return read(file, min(length, 100), at)

    monkeypatch.setattr(os, "pread", noted)
    with pytest.raises(OSError, match="ends at byte"):
        spill.read(handle)
    assert asked == [8, 5 * 1024**3, 5 * 1024**3 - 5]
