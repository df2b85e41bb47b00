"""Full garbage collections while an experiment starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from dasktune.full_collections import quick_full_collections


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    was_frozen = gc.get_freeze_count() > 0  # by tests/conftest.py
    gc.unfreeze()
    # A collection that Python makes by itself would free what a test is about to count.
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


class Garbage:
    """An object in a cycle, which only a collection frees; it counts those that were freed."""

    freed = 0

    def __init__(self) -> None:
        self.itself: Any = self

    def __del__(self) -> None:
        Garbage.freed += 1


def freed_by_a_collection() -> int:
    before = Garbage.freed
    gc.collect()
    return Garbage.freed - before


def test_a_full_collection_skips_what_was_there_before_and_frees_what_is_new() -> None:
    Garbage()
    with quick_full_collections():
        assert gc.get_freeze_count() > 1000
        Garbage()
        assert freed_by_a_collection() == 1
    assert gc.get_freeze_count() == 0
    assert freed_by_a_collection() == 1


def test_it_may_end_before_the_context() -> None:
    with quick_full_collections() as end:
        end()
        assert gc.get_freeze_count() == 0
        gc.freeze()  # by the user, in the run
    assert gc.get_freeze_count() > 1000


def test_an_error_ends_it() -> None:
    with pytest.raises(ValueError, match="planned"), quick_full_collections():
        raise ValueError("as planned")
    assert gc.get_freeze_count() == 0


def test_objects_that_the_user_has_frozen_stay_so() -> None:
    gc.freeze()
    with quick_full_collections() as end:
        end()
    assert gc.get_freeze_count() > 1000
