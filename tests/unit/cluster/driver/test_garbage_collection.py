"""How often Python looks for garbage in a process with a driver."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from distributed import Worker

from dasktune.cluster.driver.garbage_collection import rarer_collections


@pytest.fixture(autouse=True)
def _default_thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Another test of this process may have left a worker behind.
    monkeypatch.setattr(Worker, "_instances", set())
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_collections_are_rarer_until_the_last_driver_ends() -> None:
    first, second = rarer_collections(), rarer_collections()
    with first:
        assert gc.get_threshold() == (2_100, 30, 30)
        second.__enter__()
    assert gc.get_threshold() == (2_100, 30, 30)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
    with pytest.raises(ValueError, match="as planned"), rarer_collections():
        raise ValueError("as planned")
    assert gc.get_threshold() == (700, 10, 10)


def test_what_the_user_has_set_stays() -> None:
    gc.set_threshold(50_000, 20, 100)
    with rarer_collections():
        assert gc.get_threshold() == (50_000, 30, 100)
    assert gc.get_threshold() == (50_000, 20, 100)
    with rarer_collections():
        gc.set_threshold(900, 9, 9)
    assert gc.get_threshold() == (900, 9, 9)
    gc.set_threshold(0, 10, 10)
    with rarer_collections():
        assert gc.get_threshold() == (0, 10, 10)
    assert gc.get_threshold() == (0, 10, 10)


def test_nothing_changes_beside_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_instances", {"a worker"})
    with rarer_collections():
        assert gc.get_threshold() == (700, 10, 10)
