"""Names that another user creates in a shared temp directory cost a driver and a worker nothing."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dasktune.storage.fs import temp_dirs
from dasktune.trainable.data.shared_objects import SharedObject, frames_of, load

#: The user id that most systems keep for a user without rights.
OTHER_UID = 65534

#: Seconds after which a call counts as one that waits for ever.
PATIENCE = 60.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of another user")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which every user may create names, as in /tmp and /dev/shm."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def share_object(place: Path) -> None:
    SharedObject(frames_of([1]), memory_directory=str(place)).path()


#: What looks for stale names, and how they begin.
SWEEPS: dict[str, Callable[[Path], object]] = {
    "dasktune-checkpoints-x": lambda place: temp_dirs.make_directory(),
    "dasktune-shared-x": share_object,
}


@pytest.fixture
def pipe_readers() -> Iterator[list[Path]]:
    """Pipes whose readers are freed at the end: a test that fails must not leave a thread."""
    pipes: list[Path] = []
    yield pipes
    for pipe in pipes:
        free_readers(pipe)


def free_readers(pipe: Path) -> None:
    with suppress(OSError):  # no thread waits
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def within_seconds(call: Callable[[], object]) -> None:
    """Call in a thread, and fail if it does not end."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for ever"
    assert raised == []


@pytest.mark.parametrize("name", SWEEPS)
def test_a_pipe_of_another_user_blocks_no_process(shared: Path, name: str, pipe_readers: list[Path]) -> None:
    os.mkfifo(shared / name, 0o666)
    if os.geteuid() == 0:
        os.chown(shared / name, OTHER_UID, OTHER_UID)
    pipe_readers.append(shared / name)
    within_seconds(lambda: SWEEPS[name](shared))
    assert (shared / name).exists()


@pytest.mark.parametrize("name", SWEEPS)
def test_a_link_to_a_pipe_blocks_no_process(
    shared: Path, tmp_path: Path, name: str, pipe_readers: list[Path]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe_readers.append(tmp_path / "pipe")
    (shared / name).symlink_to(tmp_path / "pipe")
    within_seconds(lambda: SWEEPS[name](shared))


@pytest.mark.parametrize("name", SWEEPS)
def test_what_a_link_leads_to_is_not_deleted(shared: Path, tmp_path: Path, name: str) -> None:
    for target in (tmp_path / "file", tmp_path / "folder" / "file"):
        target.parent.mkdir(exist_ok=True)
        target.write_text("mine")
    (shared / name).symlink_to(tmp_path / "file")
    (shared / f"{name}y").symlink_to(tmp_path / "folder")
    SWEEPS[name](shared)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "file").read_text() == "mine"


@pytest.mark.parametrize("name", SWEEPS)
def test_names_of_other_kinds_are_skipped(shared: Path, name: str) -> None:
    (shared / "dasktune-checkpoints-file").write_text("no directory")
    (shared / "dasktune-shared-folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / name))
        SWEEPS[name](shared)
    assert (shared / "dasktune-checkpoints-file").read_text() == "no directory"
    assert (shared / "dasktune-shared-folder").is_dir()


@as_root
@pytest.mark.parametrize("name", SWEEPS)
def test_files_of_another_user_are_neither_opened_nor_deleted(
    shared: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = shared / name
    if "checkpoints" in name:
        entry.mkdir()
    else:
        entry.write_text("theirs")
    os.chown(entry, OTHER_UID, OTHER_UID)
    opened: list[str] = []
    real = os.open

    def watch(path: Any, *args: Any, **options: Any) -> int:
        opened.append(os.fspath(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", watch)
    SWEEPS[name](shared)
    assert entry.exists()
    assert str(entry) not in opened


def test_a_sweep_that_hangs_delays_no_thread_that_has_its_directory(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp_dirs.make_directory()
    hangs, gate = threading.Event(), threading.Event()

    other = shared / "other"
    other.mkdir()
    scan = os.scandir

    def hang(place: Any) -> Any:
        if place == str(other):
            hangs.set()
            gate.wait(10 * PATIENCE)
        return scan(place)

    monkeypatch.setattr(os, "scandir", hang)
    thread = threading.Thread(target=temp_dirs.make_directory, daemon=True)
    monkeypatch.setattr(
        tempfile,
        "gettempdir",
        lambda: str(other if threading.current_thread() is thread else shared),
    )
    thread.start()
    assert hangs.wait(PATIENCE)
    try:
        within_seconds(temp_dirs.make_directory)
    finally:
        gate.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("planted", ["directory", "link"])
def test_a_directory_that_another_user_puts_in_place_of_a_deleted_one_is_not_used(
    shared: Path, tmp_path: Path, planted: str
) -> None:
    # A system cleaner may delete the directory. Who owns its successor could replace checkpoints in
    # it by pickles.
    root = Path(temp_dirs.make_directory()).parent
    shutil.rmtree(root)
    if planted == "directory":
        root.mkdir(mode=0o777)
        if os.geteuid() == 0:
            os.chown(root, OTHER_UID, OTHER_UID)
    else:
        (tmp_path / "theirs").mkdir(mode=0o777)
        root.symlink_to(tmp_path / "theirs")
    made = Path(temp_dirs.make_directory())
    assert made.parent != root
    # Only root can give it to another user; otherwise it is deleted as abandoned.
    assert not root.exists() or list(root.iterdir()) == []


@as_root
def test_a_pickle_that_another_user_puts_in_place_of_a_shared_object_is_not_loaded(shared: Path) -> None:
    held = SharedObject(frames_of({"mine": 1}), memory_directory=str(shared))
    path = Path(held.path())
    content = path.read_bytes()
    # `systemd-logind` deletes the files of a user in /dev/shm when the user's last session ends.
    path.unlink()
    path.write_bytes(content)
    os.chown(path, OTHER_UID, OTHER_UID)
    with pytest.raises(PermissionError, match=r"must be a plain file of user \d+, got .* owner 65534"):
        load(path)


def test_a_shared_object_is_not_loaded_by_a_link(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps("theirs"))
    (shared / "dasktune-shared-x").symlink_to(tmp_path / "file")
    with pytest.raises(PermissionError, match="must be a plain file"):
        load(shared / "dasktune-shared-x")
