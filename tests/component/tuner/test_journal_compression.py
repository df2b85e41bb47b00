from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dasktune as tune
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.tuner.tuner import Tuner


def train(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": config["x"]}


def opened(path: Path, *, compress_journal: bool) -> Any:
    """Return the store with which the driver of a new or a restored experiment begins."""
    config = tune.RunConfig(storage_path=str(path.parent), name=path.name, compress_journal=compress_journal)
    if (path / "experiment.json").exists():
        tuner = Tuner.restore(str(path), train, run_config=config)
    else:
        tuner = Tuner(train, param_space={"x": tune.uniform(0, 1)}, run_config=config)
    return tuner._open_store(Storage(str(path)), path.name, tuner._experiment)


def test_a_driver_compresses_the_journal_of_earlier_drivers_if_the_user_wants_it(tmp_path: Path):
    path = tmp_path / "run"
    store = opened(path, compress_journal=True)
    for number in range(100):
        store.append({"event": "TimePassed", "time": float(number)})
    store.close()
    segment = path / "journal" / "000001-000000.jsonl"
    plain = segment.read_bytes()
    records = list(read_journal(Storage(str(path))))
    opened(path, compress_journal=False).close()
    assert segment.read_bytes() == plain
    store = opened(path, compress_journal=True)
    deadline = time.monotonic() + 60
    while segment.read_bytes() == plain:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.close()
    assert segment.stat().st_size < len(plain) / 3
    assert list(read_journal(Storage(str(path)))) == records
