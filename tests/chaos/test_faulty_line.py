"""Each fault of the line is the one that it is called, and the storage survives all of them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest
from faulty_line import CLIENT, FAULTS, FaultyLine
from s3_kit import S3Server

from dasktune.errors import StorageError
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.probe import probe
from dasktune.storage.fs.storage import Storage

pytestmark = pytest.mark.cluster


@pytest.fixture
def line(s3: S3Server) -> Iterator[FaultyLine]:
    """A line on which only planned faults come."""
    line = FaultyLine(s3.port, seed=0, rate=0.0)
    yield line
    line.close()
    assert line.errors == []


def through(s3: S3Server, line: FaultyLine, direct: Storage, **client: Any) -> Storage:
    """Return the directory of `direct`, reached by a line."""
    options = {**s3.options(), "endpoint_url": f"http://127.0.0.1:{line.port}"}
    return Storage(direct.url, {**options, "config_kwargs": {**CLIENT, **client}})


#: Whether a write is carried out, and what its client sees.
EFFECTS = {
    "500": (False, 500),
    "500 after": (True, 500),
    "503": (False, 503),
    "mute": (False, "TimeoutError"),
    "mute after": (True, "TimeoutError"),
    "slow": (True, 200),
    "reset": (False, "ConnectionResetError"),
    "reset after": (True, "ConnectionResetError"),
    "reset in the body": (True, 200),  # the answer to a write has no body
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_comes_before_or_after_a_write_is_carried_out(
    s3: S3Server, line: FaultyLine, fault: str
) -> None:
    direct = s3.storage()
    line.plan("PUT", "/x", fault)
    # Not a client of S3, which retries by itself.
    client = http.client.HTTPConnection("127.0.0.1", line.port, timeout=1.0)
    try:
        client.request("PUT", f"/{direct.path('x')}", b"1")
        seen: Any = client.getresponse().status
    except OSError as error:
        seen = type(error).__name__
    finally:
        client.close()
    assert (direct.exists("x"), seen) == EFFECTS[fault]
    assert line.faults == {fault: 1}


@pytest.mark.slow
def test_each_read_finishes(s3: S3Server, line: FaultyLine) -> None:
    direct = s3.storage()
    direct.write_bytes("x", b"1" * 10_000)
    far = through(s3, line, direct, read_timeout=0.3)
    for fault in FAULTS:
        line.plan("GET", "/x", fault)
        assert far.read_bytes("x") == b"1" * 10_000
    assert line.faults == dict.fromkeys(FAULTS, 1)


@pytest.mark.parametrize("fault", ["500 after", "mute after", "reset after"])
def test_a_new_experiment_does_not_refuse_its_own_file(s3: S3Server, line: FaultyLine, fault: str) -> None:
    direct = s3.storage()
    far = through(s3, line, direct, read_timeout=0.3)
    # The client of the store repeats the write by itself, and finds the file.
    line.plan("PUT", "/experiment.json", fault)
    ExperimentStore(far).create({"name": "run"})
    assert line.faults == {fault: 1}
    assert ExperimentStore(direct).spec()["name"] == "run"
    with pytest.raises(StorageError, match="there is an experiment at"):
        ExperimentStore(far).create({"name": "run"})


@pytest.mark.parametrize("fault", ["500 after", "reset after"])
@pytest.mark.parametrize("write", [1, 2])
def test_a_store_that_loses_an_answer_passes_the_check(
    s3: S3Server, line: FaultyLine, fault: str, write: int
) -> None:
    direct = s3.storage()
    far = through(s3, line, direct, read_timeout=0.3)
    # Of the two writes of the check, the store refuses the second.
    for planned in ["slow", fault][-write:]:
        line.plan("PUT", "", planned)
    probe(far)
    assert line.faults[fault] == 1
    assert direct.find() == []


def test_the_same_seed_chooses_the_same_faults(s3: S3Server) -> None:
    chosen = []
    for seed in (1, 1, 2):
        line = FaultyLine(s3.port, seed=seed, rate=0.3)
        chosen.append([line._fault("GET", "/x") for _ in range(100)])
        line.close()
    assert chosen[0] == chosen[1] != chosen[2]
    assert 15 < sum(map(bool, chosen[0])) < 45
