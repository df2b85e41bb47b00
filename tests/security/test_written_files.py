"""Nothing is written through a link, and a directory that others can change causes a warning."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from trial_run_kit import PATIENCE, Driver, make_spec

from dasktune import CheckpointConfig, RunConfig, Trainable, with_parameters
from dasktune.cluster.driver.checkpoint_relay import _append_logs
from dasktune.errors import ConfigError, StorageError
from dasktune.isolation.environment import in_trial_directory
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback
from dasktune.sklearn.fits.search_experiment import InProcessTuner
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.checkpoints.relay import write_piece
from dasktune.trainable.data.shared_objects import SharedObject, frames_of

OTHER_UID = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of another user")

KINDS = ("link to a file", "link to nothing", "linked directory", "pipe")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A private file of the user, outside of the experiment."""
    private = tmp_path / "home" / "private"
    private.parent.mkdir()
    private.write_text("mine")
    return private


@pytest.fixture
def plant(tmp_path: Path, victim: Path) -> Iterator[Callable[[str], Storage]]:
    """Put something in the way of a trial's output, and return the experiment's storage."""
    pipes: list[Path] = []

    def plant(kind: str) -> Storage:
        experiment = tmp_path / "exp"
        trial = experiment / "trials" / "a"
        trial.parent.mkdir(parents=True)
        if kind == "linked directory":
            trial.symlink_to(victim.parent)
            return Storage(experiment)
        trial.mkdir()
        if kind == "pipe":
            os.mkfifo(trial / "private")
            pipes.append(trial / "private")
        else:
            target = victim if kind == "link to a file" else victim.with_name("new")
            (trial / "private").symlink_to(target)
        return Storage(experiment)

    yield plant
    for pipe in pipes:
        with suppress(OSError):
            os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))


def in_time(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for ever"


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_of_a_trial_is_written_through_no_link(
    plant: Callable[[str], Storage], victim: Path, kind: str, caplog: pytest.LogCaptureFixture
):
    storage = plant(kind)

    def train(config: dict[str, Any]) -> None:
        print("output")

    def run() -> None:
        names = ("private", "private")
        Driver(train, storage=storage, trial_id="a", trial_dir="a", log_files=names).end()

    in_time(run)
    assert victim.read_text() == "mine"
    assert not victim.with_name("new").exists()
    assert "the output of trial a is not kept" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_output_that_the_driver_stores_is_written_through_no_link(
    plant: Callable[[str], Storage], victim: Path, kind: str
):
    storage = plant(kind)
    spool = Checkpoint.temporary()
    Path(spool.path, "private").write_text("output")
    spec = make_spec(storage=storage, trial_id="a", trial_dir="a", log_files=("private", "private"))

    def store() -> None:
        with pytest.raises(StorageError, match="must be a plain file"):
            _append_logs(spec, storage, spool)

    in_time(store)
    assert victim.read_text() == "mine"
    assert not victim.with_name("new").exists()


@pytest.mark.parametrize("kind", ["link", "linked nothing", "pipe", "pipe with a reader", "socket"])
def test_a_file_that_becomes_something_else_after_the_check_is_not_appended_to(
    tmp_path: Path, victim: Path, kind: str
):
    path = tmp_path / "log"
    reader = -1
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "linked nothing":
        path.symlink_to(victim.with_name("new"))
    else:
        os.mkfifo(path)
    if kind == "pipe with a reader":
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(StorageError, match="must be a plain file"):
        local_files.open_append(str(path))
    assert victim.read_text() == "mine"
    if reader >= 0:
        os.close(reader)


def test_a_piece_of_a_checkpoint_is_written_through_no_link(tmp_path: Path, victim: Path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "weights").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_piece(str(tmp_path / "spool"), "weights", 0, b"theirs")
    assert victim.read_text() == "mine"


def test_a_trial_does_not_change_to_a_directory_behind_a_link(plant: Callable[[str], Storage]):
    spec = make_spec(storage=plant("linked directory"), trial_id="a", trial_dir="a", chdir=True)
    before = Path.cwd()
    with pytest.raises(StorageError, match="got a link"), in_trial_directory(spec):
        pass
    assert Path.cwd() == before


# Directories that others can change


class Step(Trainable):
    def step(self) -> dict[str, Any]:
        return {"done": True}


@pytest.mark.parametrize("made", ["world-writable", "by another user", "private"])
def test_an_experiment_in_a_directory_that_was_made_before_says_who_can_change_it(
    tmp_path: Path, made: str, caplog: pytest.LogCaptureFixture
):
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(0o777 if made == "world-writable" else 0o755)
    if made == "by another user":
        if os.geteuid() != 0:
            pytest.skip("only root can create files of another user")
        os.chown(place, OTHER_UID, OTHER_UID)
    InProcessTuner(
        Step,
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    ).fit()
    warned = "other users can change the experiment" in caplog.text
    assert warned == (made != "private")


@pytest.mark.parametrize(
    ("mode", "parent_mode", "said"),
    [
        (0o755, 0o755, ""),
        (0o775, 0o775, ""),
        (0o755, 0o1777, ""),
        (0o777, 0o755, "every user may write into it"),
        (0o1777, 0o755, "every user may write into it"),
        (0o755, 0o777, "every user may replace it"),
    ],
)
def test_a_directory_that_others_can_change_is_warned_of(
    tmp_path: Path, mode: int, parent_mode: int, said: str, caplog: pytest.LogCaptureFixture
):
    from dasktune.storage.fs.probe import warn_if_exposed

    place = tmp_path / "results" / "exp"
    place.mkdir(parents=True)
    place.chmod(mode)
    place.parent.chmod(parent_mode)
    with caplog.at_level(logging.WARNING):
        warn_if_exposed(Storage(place))
    assert (said in caplog.text) if said else caplog.text == ""
    assert caplog.text.count("unpickled") == bool(said)


@as_root
def test_a_directory_of_another_user_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    from dasktune.storage.fs.probe import warn_if_exposed

    (tmp_path / "exp").mkdir()
    os.chown(tmp_path / "exp", OTHER_UID, OTHER_UID)
    warn_if_exposed(Storage(tmp_path / "exp"))
    assert "it belongs to user 65534" in caplog.text


def test_nothing_is_warned_of_in_an_object_store_or_before_the_directory_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    from dasktune.storage.fs.probe import warn_if_exposed

    warn_if_exposed(Storage("memory://exposed"))
    warn_if_exposed(Storage(tmp_path / "missing"))
    assert caplog.text == ""
    with pytest.raises(ConfigError):
        Storage("")


# Permissions


def modes(place: Path) -> set[tuple[str, int]]:
    """Return kinds and permissions of all that is below a directory."""
    kinds = {True: "directory", False: "file"}
    return {(kinds[path.is_dir()], path.stat().st_mode & 0o777) for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("umask", "expected"),
    [(0o077, {("directory", 0o700), ("file", 0o600)}), (0o022, {("directory", 0o755), ("file", 0o644)})],
)
def test_an_experiment_has_the_permissions_that_the_umask_leaves(
    tmp_path: Path, umask: int, expected: set[tuple[str, int]]
):
    before = os.umask(umask)
    try:
        InProcessTuner(
            Step,
            param_space={"x": 1.0},
            run_config=RunConfig(
                name="run",
                storage_path=str(tmp_path),
                verbose=0,
                callbacks=[CSVLoggerCallback(), JsonLoggerCallback()],
            ),
        ).fit()
    finally:
        os.umask(before)
    assert modes(tmp_path) == expected


def pickles_in(path: Path) -> list[bytes]:
    return [base64.b64decode(one) for one in re.findall(r'"pickle": "([^"]+)"', path.read_text())]


def test_texts_of_the_space_are_written_as_they_are_and_bound_ones_nowhere(tmp_path: Path):
    class Bound(Step):
        def setup(self, config: dict[str, Any], bound: str) -> None:
            assert bound == "bound text"

    InProcessTuner(
        with_parameters(Bound, bound="bound text"),
        param_space={"text": "text of the space"},
        run_config=RunConfig(
            name="run", storage_path=str(tmp_path), verbose=0, callbacks=[JsonLoggerCallback()]
        ),
    ).fit()
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    pickles = pickles_in(tmp_path / "run" / "tuner.json")
    assert pickles != []
    assert [one for one in (*files.values(), *pickles) if b"bound text" in one] == []
    shown = {name for name, content in files.items() if b"text of the space" in content}
    assert {"params.json", "tuner.json"} < shown
    assert any(name.endswith(".jsonl") for name in shown)


def test_what_a_trial_prints_raises_and_saves_is_stored_as_it_is(tmp_path: Path):
    class Frank(Trainable):
        def step(self) -> dict[str, Any]:
            if self.iteration == 1:
                raise ValueError("text of an error")
            return {}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            Path(checkpoint_dir, "state").write_text("saved text")

    InProcessTuner(
        Frank,
        run_config=RunConfig(
            name="run",
            storage_path=str(tmp_path),
            verbose=0,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()

    def talk(config: dict[str, Any]) -> None:
        print("printed text")

    storage = Storage(tmp_path / "run")
    Driver(talk, storage=storage, trial_id="b", trial_dir="b", log_files=("out", "err")).end()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for text in (b"text of an error", b"saved text", b"printed text"):
        assert [path for path, content in files.items() if text in content] != [], text


class Planted:
    """Unpickling it creates a directory."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


def test_who_can_write_an_experiment_runs_code_where_it_is_restored(tmp_path: Path):
    # So the directory is for the user alone, and the driver warns if it is not.
    callbacks = [JsonLoggerCallback()]
    InProcessTuner(
        Step,
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0, callbacks=callbacks),
    ).fit()
    path = tmp_path / "run" / "tuner.json"
    planted = base64.b64encode(pickle.dumps(Planted(str(tmp_path / "made")))).decode()
    changed, times = re.subn(r'("pickle": ?")[^"]+', rf"\g<1>{planted}", path.read_text())
    assert times > 0
    path.write_text(changed)
    with suppress(Exception):
        InProcessTuner.restore(str(tmp_path / "run"), Step)
    assert (tmp_path / "made").is_dir()


def test_temporary_checkpoints_and_shared_objects_are_for_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        checkpoint = Checkpoint.temporary()
        shared = SharedObject(frames_of([1]), memory_directory=str(tmp_path))
        file = Path(shared.path())
    finally:
        os.umask(before)
    place = Path(checkpoint.path)
    assert {one.stat().st_mode & 0o777 for one in (place, place.parent)} == {0o700}
    assert file.stat().st_mode & 0o777 == 0o600
    shared.close()
