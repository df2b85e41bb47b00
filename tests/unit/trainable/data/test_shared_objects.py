"""Objects as frames: measured, written, mapped, and shared."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.trainable.data.shared_objects import (
    SharedObject,
    dump,
    dumps_without,
    frames_of,
    load,
    loads_with,
    pickled_size,
)

DATA = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are put unless there is memory for them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def shared_object(thing: Any, memory: str | Path = "/nowhere") -> SharedObject:
    """Share an object where there is no memory for files, or a certain directory."""
    return SharedObject(frames_of(thing), memory_directory=str(memory))


def shared_files(folder: Path) -> list[Path]:
    return list(folder.glob("dasktune-shared-*"))


@pytest.mark.parametrize(
    "thing",
    [
        DATA,
        np.asfortranarray(DATA),
        DATA[:, ::2],
        np.zeros((0, 3)),
        {"a": DATA, "b": [DATA[0], "text"]},
        bytearray(b"x" * 1000),
        None,
    ],
    ids=["array", "fortran", "with gaps", "empty", "nested", "bytearray", "none"],
)
def test_what_is_dumped_is_loaded(thing: Any, tmp_path: Path) -> None:
    dump(thing, tmp_path / "file")
    np.testing.assert_equal(load(tmp_path / "file"), thing)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_frames_of_any_size_are_found_again_in_the_file(parts: list[bytes]) -> None:
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    with tempfile.TemporaryDirectory() as place:
        dump(arrays, Path(place, "file"))
        assert [one.tobytes() for one in load(Path(place, "file"))] == parts


def test_what_is_loaded_cannot_be_written_to_and_outlives_its_file(tmp_path: Path) -> None:
    dump(DATA, tmp_path / "file")
    loaded = load(tmp_path / "file")
    (tmp_path / "file").unlink()
    with pytest.raises(ValueError, match="read-only"):
        loaded[0, 0] = 7
    np.testing.assert_array_equal(loaded, DATA)


def test_buffers_begin_where_vector_instructions_like_it(tmp_path: Path) -> None:
    dump(["x" * 7, DATA, DATA[0]], tmp_path / "file")
    _, one, two = load(tmp_path / "file")
    assert one.ctypes.data % 64 == two.ctypes.data % 64 == 0


def test_the_frames_of_an_array_are_its_own_memory() -> None:
    _, buffer = frames_of(DATA)
    assert np.shares_memory(np.frombuffer(buffer), DATA)


@pytest.mark.parametrize("thing", [DATA, b"x" * 100_000, list(range(50_000)), "text"])
def test_the_size_is_that_of_the_pickle_with_its_buffers(thing: Any) -> None:
    assert pickled_size(thing) == sum(memoryview(frame).nbytes for frame in frames_of(thing))


class Loud:
    """Counts how often it is made of a pickle."""

    made = 0

    def __init__(self) -> None:
        self.data = DATA

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        Loud.made += 1


def test_a_shared_object_is_made_once_and_is_the_same_for_all() -> None:
    Loud.made = 0
    shared = shared_object(Loud())
    assert Loud.made == 0
    one, two = shared.get(), shared.get()
    assert one is two
    assert Loud.made == 1
    assert not one.data.flags.writeable
    shared.close()


@pytest.mark.parametrize("opened", [False, True])
def test_the_file_of_a_shared_object_is_written_once_and_removed(opened: bool, folder: Path) -> None:
    shared = shared_object({"data": DATA})
    if opened:
        shared.get()
    path = shared.path()
    assert [path] == [shared.path()] == [str(one) for one in shared_files(folder)]
    np.testing.assert_array_equal(load(path)["data"], DATA)
    np.testing.assert_array_equal(shared.get()["data"], DATA)
    shared.close()
    shared.close()
    assert shared_files(folder) == []


def test_the_file_is_in_memory_where_there_is_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder / "memory"
    memory.mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    small, large = shared_object(DATA, memory), shared_object(np.zeros(2000), memory)
    assert Path(small.path()).parent == memory
    assert Path(large.path()).parent == folder
    small.close()
    large.close()


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let each write to a new file in a directory fail, as that to a full disk does."""
    make = tempfile.mkstemp

    def mkstemp(*args: Any, **options: Any) -> tuple[int, str]:
        descriptor, path = make(*args, **options)
        if Path(path).parent != folder:
            return descriptor, path
        os.close(descriptor)
        return os.open("/dev/full", os.O_WRONLY), path

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def test_a_full_memory_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder / "memory"
    memory.mkdir()
    fill_the_disk(monkeypatch, memory)
    shared = shared_object(DATA, memory)
    assert Path(shared.path()).parent == folder
    assert shared_files(memory) == []
    shared.close()


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, whatever it has open elsewhere."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(folder))]


def test_no_descriptor_stays_open_after_a_failed_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_disk(monkeypatch, folder)
    with pytest.raises(OSError, match="No space left"):
        shared_object(DATA).path()
    assert open_files(folder) == []
    assert shared_files(folder) == []


def test_code_that_is_sent_keeps_the_name_of_its_file():
    scope = {"__name__": "__main__"}
    exec(compile("def train(config): pass", "/home/ada/train.py", "exec"), scope)
    sent = pickle.loads(dumps_without({"trainable": scope["train"]}, {}))
    assert sent["trainable"].__code__.co_filename == "/home/ada/train.py"


def test_objects_are_left_out_by_identity_wherever_they_stand() -> None:
    data, like_it = [1, 2], [1, 2]
    function = lambda: (data, like_it)  # noqa: E731 - a closure, as users have them
    blob = dumps_without({"function": function, "data": data}, {"name": data})
    opened = loads_with(blob, lambda name: [name])
    assert opened["data"] == ["name"]
    assert opened["function"]() == (["name"], [1, 2])
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(blob)
