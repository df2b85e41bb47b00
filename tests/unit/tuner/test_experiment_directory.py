"""The directory of a new experiment, if there is one of its name already."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import dasktune as tune
from dasktune.errors import ConfigError, StorageError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock
from dasktune.tuner.experiment_directory import free_names, has_experiment, reserved_directory


def nothing() -> None: ...


def store_experiment(url: str, name: str = "e") -> Storage:
    storage = Storage(url).child(name)
    store = ExperimentStore(storage)
    store.create({"dasktune": "0.3.0", "name": name})
    store.begin()
    store.append({"event": "TrialAdded"})
    store.close()
    return storage


def config(url: Any, **options: Any) -> tune.RunConfig:
    return tune.RunConfig(name="e", storage_path=url, **options)


@pytest.fixture(params=["disk", "object store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else f"memory://names-{uuid4().hex}"


def test_a_second_run_of_a_name_gets_a_directory_of_its_own(url: str, caplog: pytest.LogCaptureFixture):
    first = store_experiment(url)
    before = {name: first.read_bytes(name) for name in first.find() if not name.startswith("driver")}
    with reserved_directory(config(url), "e", nothing) as (name, storage, lock):
        assert name == "e_2"
        assert storage == Storage(url).child("e_2")
        assert lock.storage == storage
    assert {name: first.read_bytes(name) for name in first.find() if not name.startswith("driver")} == before
    assert f"this one is stored in {storage}" in caplog.text
    store_experiment(url, "e_2")
    with reserved_directory(config(url), "e", nothing) as (name, _, _):
        assert name == "e_3"
    assert list(islice(free_names(config(url), "e"), 2)) == ["e_3", "e_4"]


def test_two_drivers_that_start_at_once_get_a_directory_each(url: str):
    starting, holding = threading.Barrier(2), threading.Barrier(2)

    def drive(_: int) -> str:
        starting.wait(60)
        with reserved_directory(config(url), "e", nothing) as (name, _, _):
            holding.wait(60)
        return name

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(drive, range(2))) == ["e", "e_2"]


def test_an_experiment_that_ends_between_look_and_lock_is_not_overwritten(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    acquire, once = LeaderLock.acquire, iter([True])

    def late(lock: LeaderLock) -> None:
        if next(once, False):
            store_experiment(url)
        acquire(lock)

    monkeypatch.setattr(LeaderLock, "acquire", late)
    with reserved_directory(config(url), "e", nothing) as (name, _, _):
        assert name == "e_2"


def test_a_reservation_whose_driver_has_died_is_no_experiment(url: str, caplog: pytest.LogCaptureFixture):
    storage = Storage(url).child("e")
    with LeaderLock(storage):
        pass
    assert not has_experiment(storage)
    with pytest.raises(StorageError, match="no experiment"):
        tune.Tuner.restore(storage.url, lambda config: None)
    tuner = tune.Tuner(lambda config: None, run_config=config(url, if_exists="resume"), client=3.14)
    # It comes as far as a new experiment does.
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigError, match="client must be"):
        tuner.fit()
    assert "e has no experiment to resume: a new one begins" in caplog.text
    with reserved_directory(config(url), "e", nothing) as (name, _, _):
        assert name == "e"


def test_a_replaced_experiment_is_deleted_and_other_files_stay(url: str):
    storage = store_experiment(url)
    storage.write_bytes("notes.txt", b"mine")
    with reserved_directory(config(url, if_exists="replace"), "e", nothing) as (name, _, lock):
        assert name == "e"
        assert lock.confirm()
        left = {path.partition("/")[0] for path in storage.find()}
        assert left == {"driver", "notes.txt"}


@pytest.mark.parametrize("if_exists", ["replace", "error"])
def test_an_experiment_that_runs_is_not_replaced(url: str, if_exists: Any):
    storage = store_experiment(url)
    with (
        LeaderLock(storage),
        pytest.raises(StorageError, match=r"another driver|name must be new"),
        reserved_directory(config(url, if_exists=if_exists), "e", nothing),
    ):
        pass
    assert has_experiment(storage)


def test_a_directory_of_another_program_is_not_replaced(url: str):
    storage = Storage(url).child("e")
    storage.write_bytes("experiment.json", b"{}")
    with (
        pytest.raises(StorageError, match="deletes nothing"),
        reserved_directory(config(url, if_exists="replace"), "e", nothing),
    ):
        pass
    assert storage.read_bytes("experiment.json") == b"{}"


def test_a_long_name_gets_a_number_too(tmp_path: Path):
    name = "é" * 100
    store_experiment(str(tmp_path), name)
    again = next(free_names(tune.RunConfig(storage_path=tmp_path), name))
    assert again.endswith("_2")
    assert tune.RunConfig(name=again).name == again


def test_a_driver_that_fails_before_it_stores_anything_leaves_nothing(tmp_path: Path):
    tuner = tune.Tuner(lambda config: None, run_config=config(tmp_path), client=3.14)
    with pytest.raises(ConfigError, match="client must be"):
        tuner.fit()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_choice_is_refused():
    with pytest.raises(ConfigError, match="if_exists must be 'new', 'resume', 'replace' or 'error', got 'x'"):
        tune.RunConfig(if_exists="x")  # type: ignore[arg-type]
