"""What another user puts into a directory of experiments hides none of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dasktune.cli import main
from dasktune.dashboard.server.experiment_source import ExperimentFolder
from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummary
from dasktune.errors import StorageError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs import filesystem
from dasktune.storage.fs.storage import Storage


def new_experiment(path: Path) -> None:
    store = ExperimentStore(Storage(path))
    created = "2026-11-22T16:49:14+00:00"
    store.create({"name": path.name, "metric": "loss", "mode": "min", "created": created})
    store.begin()
    store.close()


def linked(path: Path) -> None:
    path.symlink_to(path.with_name("good"))


def looping(path: Path) -> None:
    path.symlink_to(path)


def socketed(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # The path of a socket must be short.
        before = Path.cwd()
        os.chdir(path.parent)
        listener.bind(path.name)
        os.chdir(before)


def inside(make: Callable[[Path], object], *names: str) -> Callable[[Path], object]:
    def build(path: Path) -> None:
        new_experiment(path)
        bad = path.joinpath(*names)
        if bad.is_dir():
            subprocess.run(["rm", "-r", str(bad)], check=True)
        else:
            bad.unlink(missing_ok=True)
        make(bad)

    return build


def spec(content: Any) -> Callable[[Path], object]:
    def build(path: Path) -> None:
        path.mkdir()
        (path / "experiment.json").write_text(json.dumps(content))

    return build


#: Entries of a results directory, and how another user makes them.
ENTRIES: dict[str, Callable[[Path], object]] = {
    "link": linked,
    "loop": looping,
    "pipe": os.mkfifo,
    "socket": socketed,
    "back\\slash": lambda path: path.mkdir(),
    "line\nbreak": new_experiment,
    "not-utf-8-\udcff": lambda path: path.mkdir(),
    "star*": new_experiment,
    "spec-pipe": inside(os.mkfifo, "experiment.json"),
    "spec-link": inside(lambda path: path.symlink_to("/dev/zero"), "experiment.json"),
    "spec-directory": inside(lambda path: path.mkdir(), "experiment.json"),
    "journal-pipe": inside(os.mkfifo, "journal"),
    "journal-link": inside(lambda path: path.symlink_to("/etc"), "journal"),
    "driver-link": inside(lambda path: path.symlink_to("/etc"), "driver"),
    "driver-pipe": inside(os.mkfifo, "driver"),
    "spec-list": spec([1]),
    "spec-metric": spec({"metric": {"a": [1] * 100}, "mode": [[]], "created": {}, "total_trials": [1]}),
    "spec-html": spec({"metric": "<img src=x onerror=1>", "mode": "<b>"}),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    new_experiment(tmp_path / "good")
    yield tmp_path
    for pipe in tmp_path.rglob("*"):
        with suppress(OSError):
            if pipe.is_fifo():
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def summaries_of(folder: ExperimentFolder) -> list[ExperimentSummary]:
    """Return the rows of the list of experiments once all are read."""
    while folder.refresh():
        pass
    return folder.summaries()


def in_time(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread, or fail if it does not end."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for ever"
    assert results, "it failed"
    return results[0]


@pytest.mark.parametrize("name", ENTRIES, ids=ascii)
def test_one_bad_entry_of_a_directory_hides_no_experiment_from_the_dashboard(place: Path, name: str):
    ENTRIES[name](place / name)

    def look() -> tuple[Any, list[ExperimentSummary]]:
        folder = ExperimentFolder(Storage(place))
        found = folder.find("good")
        other = folder.find(name)
        for live in folder.opened():
            live.poll()
        if other is not None:
            assert other.state
        return found, summaries_of(folder)

    found, rows = in_time(look)
    assert found is not None
    assert "good" in [one.name for one in rows if one.state != "unreadable"]
    assert len(rows) <= 2


@pytest.mark.parametrize("name", ["link", "pipe"])
def test_a_bad_entry_is_a_row_that_says_why(place: Path, name: str):
    ENTRIES[name](place / name)
    rows = summaries_of(ExperimentFolder(Storage(place)))
    if name == "link":
        assert any("cannot be read" in one.goal for one in rows)
    assert [one.name for one in rows if one.state != "unreadable"] == ["good"]


def test_many_bad_entries_crowd_out_no_experiment(place: Path):
    for number in range(600):
        (place / f"zzz{number}").symlink_to("nowhere")
    rows = summaries_of(ExperimentFolder(Storage(place)))
    assert "good" in [one.name for one in rows]
    assert len(rows) < 30


@pytest.mark.parametrize("name", ENTRIES, ids=ascii)
def test_one_bad_entry_of_a_directory_hides_no_experiment_from_the_command_line(
    place: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    ENTRIES[name](place / name)
    main(["ls", str(place)])
    out = capsys.readouterr().out
    assert "good" in out


def test_a_file_that_becomes_a_pipe_after_the_check_blocks_no_reader(place: Path):
    # As if another user replaced it between the check of its kind and the open.
    os.mkfifo(place / "pipe")
    local = Storage(place).fs
    for read in (filesystem.read_bytes, filesystem.open_read):

        def refused(read: Callable[..., Any] = read) -> bool:
            with pytest.raises(StorageError, match="must be a plain file, got a pipe or device"):
                read(local, str(place / "pipe"))
            return True

        assert in_time(refused)
