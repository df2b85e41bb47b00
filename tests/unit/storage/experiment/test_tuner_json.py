from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from dasktune.errors import StorageError
from dasktune.storage.experiment.tuner_json import SETUP_FILE, TunerFile, entries_of
from dasktune.storage.fs.storage import Storage


@pytest.fixture
def storage(tmp_path: Any) -> Storage:
    return Storage(str(tmp_path))


class Gone:
    """Can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_each_value_comes_back_by_itself(storage: Storage):
    values = {
        "number": 4,
        "nan": float("nan"),
        "dollar": {"$x": 1},
        "tuple": (1, 2),
        "function": lambda x: x + 1,
        "gone": Gone(),
        "lock": threading.Lock(),
    }
    TunerFile(entries_of(values)).write(storage)
    setup = TunerFile.read(storage)
    assert setup.load("number") == 4
    assert str(setup.load("nan")) == "nan"
    assert setup.load("dollar") == {"$x": 1}
    assert setup.load("tuple") == (1, 2)
    assert setup.load("function")(1) == 2
    assert [name for name, _ in setup.lost] == ["lock"]
    for name, reason in [("gone", "ValueError"), ("lock", "cannot pickle"), ("other", "missing")]:
        with pytest.raises(StorageError, match=rf"{name} of tuner.json cannot be loaded: .*{reason}"):
            setup.load(name)


def test_plain_values_can_be_read_by_anybody(storage: Storage):
    TunerFile(entries_of({"num_samples": 4, "pair": (1, 2)})).write(storage)
    content = json.loads(storage.read_bytes(SETUP_FILE))
    assert content["entries"]["num_samples"] == {"value": 4}
    assert content["entries"]["pair"]["type"] == "tuple"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a line of strict JSON"),
        (b"[]", "has format None, and this dasktune reads format 1"),
        (
            b'{"format":9,"entries":{}}',
            "has format 9, and this dasktune reads format 1.",
        ),
        (b'{"format":1,"entries":{"a":1}}', "is damaged"),
    ],
)
def test_what_is_none_is_refused(storage: Storage, content: bytes, message: str):
    storage.write_bytes(SETUP_FILE, content)
    with pytest.raises(StorageError, match=message):
        TunerFile.read(storage)


def test_a_directory_without_an_experiment_is_named(storage: Storage):
    with pytest.raises(StorageError, match=r"Give the experiment's own directory"):
        TunerFile.read(storage)


class Loud:
    """Has no repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_an_object_without_a_repr_is_packed_all_the_same():
    assert entries_of({"loud": Loud()})["loud"]["type"] == "Loud"
