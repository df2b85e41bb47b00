from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import StorageError
from dasktune.trial.rows.trial_history import BLOCK_ROWS, History, LastRow, StoredRows

ITERATION = "training_iteration"


def row(iteration: int, value: int = 0) -> dict[str, Any]:
    return {ITERATION: iteration, "value": value}


def numbers(history: Any) -> list[int]:
    return [one[ITERATION] for one in history]


def long(count: int = 5 * BLOCK_ROWS) -> History:
    return History(map(row, range(1, count + 1)))


class Plain:
    """The same as a list of all rows, as simple as possible."""

    def __init__(self, rows: Iterator[dict[str, Any]] | None = None) -> None:
        self.rows = list(rows or ())

    def record(self, new: dict[str, Any]) -> bool:
        if not self.rows or new[ITERATION] > self.rows[-1][ITERATION]:
            self.rows.append(new)
            return True
        self.rows = [new if one[ITERATION] == new[ITERATION] else one for one in self.rows]
        return False

    def cut_back(self, iteration: int) -> None:
        self.rows = [one for one in self.rows if one[ITERATION] <= iteration]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(1, 3), st.integers(1, 15)),
        st.tuples(st.just("again"), st.floats(0, 1), st.integers(1, 10)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=70)
@given(steps=STEPS, restored=st.booleans(), data=st.data())
def test_a_history_is_like_a_list_of_all_rows(steps: Any, restored: bool, data: Any):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dasktune.trial.rows.trial_history.BLOCK_ROWS", 4)
        compare(steps, restored, data)


def compare(steps: Any, restored: bool, data: Any) -> None:
    begin = [row(2 * number) for number in range(1, 16)] if restored else []
    stored = StoredRows(len(begin) - 1, lambda: History(begin)) if restored else None
    history, plain = History(begin[-1:], stored=stored), Plain(iter(begin))
    for value, (kind, where, count) in enumerate(steps, 1):
        last = plain.rows[-1][ITERATION] if plain.rows else 0
        if kind == "cut":
            history.cut_back(round(where * last))
            plain.cut_back(round(where * last))
            continue
        first, step = (last + where, where) if kind == "new" else (round(where * last), 1)
        for at in range(count):
            one = row(first + at * step, value)
            assert history.record(one) is plain.record(one)
    rows = plain.rows
    assert history == rows
    assert len(history) == len(rows)
    assert bool(history) is bool(rows)
    assert not rows or history[-1] == rows[-1]
    start, stop = (data.draw(st.integers(-len(rows) - 2, len(rows) + 2)) for _ in range(2))
    step = data.draw(st.sampled_from([None, 1, 3, -1, -2]))
    assert history[start:stop:step] == rows[start:stop:step]
    assert list(history.rows_from(abs(start))) == rows[abs(start) :]
    assert list(reversed(history)) == rows[::-1]
    for at in (start, stop):
        if -len(rows) <= at < len(rows):
            assert history[at] == rows[at]


def test_only_the_newest_rows_stay_as_they_came():
    rows = [row(number) for number in range(1, 5 * BLOCK_ROWS)]
    history = History(rows)
    kept = [one is other for one, other in zip(history, rows, strict=True)]
    assert kept.count(True) < 2 * BLOCK_ROWS
    assert kept[-BLOCK_ROWS:] == [True] * BLOCK_ROWS
    assert len(history) > len(history.newest)
    assert history == rows


def test_a_short_history_is_not_packed():
    history = long(2 * BLOCK_ROWS - 1)
    assert len(history) == len(history.newest)


def test_rows_that_cannot_be_packed_stay_as_they_are():
    rows = [{ITERATION: number, "model": print, "f": lambda: None} for number in range(3 * BLOCK_ROWS)]
    history = History(rows)
    assert history == rows
    assert history[0] is rows[0]
    history.cut_back(3)
    assert history == rows[:4]


def test_a_row_between_two_that_were_reported_is_not_added():
    history = History(row(2 * number) for number in range(1, 4 * BLOCK_ROWS))
    before = list(history)
    assert not history.record(row(3, 7))
    assert not history.record(row(before[-1][ITERATION] - 1, 7))
    assert history == before
    # Older than any: there is nothing to replace.
    young = History([row(5)])
    assert not young.record(row(1))
    assert young == [row(5)]


def test_stored_rows_are_read_only_when_they_are_needed():
    reads = []
    rows = [row(number) for number in range(1, 301)]

    def read() -> History:
        reads.append(1)
        return History(rows)

    history = History([row(300)], stored=StoredRows(299, read))
    assert not history.is_at_hand
    assert len(history) == 300
    assert history.record(row(301))
    assert not history.record(row(5, 7))
    assert history[-1] == row(301)
    assert history[-2:] == [row(300), row(301)]
    history.cut_back(300)
    assert not reads
    assert history[4] == row(5, 7)
    assert history == [*rows[:4], row(5, 7), *rows[5:]]
    history.cut_back(200)
    assert history.is_at_hand
    assert history == [*rows[:4], row(5, 7), *rows[5:200]]


def test_backwards_the_newest_rows_come_first_and_older_ones_only_when_they_are_asked_for():
    reads: list[Any] = []

    class Store:
        def write(self, block: bytes) -> object:
            return block

        def read(self, handle: Any) -> bytes:
            reads.append("block")
            return handle

    def read() -> History:
        reads.append("stored")
        # More rows than were there when the history was saved.
        return History(map(row, range(1, 400)))

    count = 4 * BLOCK_ROWS
    rows = [row(number) for number in range(300, 300 + count)]
    history = History(rows, store=Store(), stored=StoredRows(299, read))
    backwards = reversed(history)
    newest = len(history.newest)
    assert [next(backwards) for _ in range(newest)] == rows[: -newest - 1 : -1]
    assert reads == []
    assert next(backwards) == rows[-newest - 1]
    assert reads == ["block"]
    assert numbers(backwards) == list(range(298 + count - newest, 0, -1))
    assert reads == ["block"] * ((count - newest) // BLOCK_ROWS) + ["stored"]


def test_a_reader_sees_one_moment_while_the_history_changes():
    history = long()
    before = list(history)
    reading = iter(history)
    seen = [next(reading) for _ in range(BLOCK_ROWS + 3)]
    history.cut_back(2 * BLOCK_ROWS)
    for number in range(2 * BLOCK_ROWS + 1, 9 * BLOCK_ROWS):
        history.record(row(number, value=9))
    assert seen + list(reading) == before


def test_an_index_beyond_the_rows_is_an_error():
    for history in (long(), History()):
        with pytest.raises(IndexError):
            history[len(history)]
        with pytest.raises(IndexError):
            history[-len(history) - 1]


def test_a_history_equals_lists_and_histories_of_the_same_rows_only():
    history = long()
    assert history == list(history)
    assert history == long()
    assert history != list(history)[1:]
    assert history != tuple(history)
    assert repr(history) == repr(list(history))
    again = pickle.loads(pickle.dumps(history))
    assert type(again) is History
    assert again == list(history)
    with pytest.raises(TypeError, match="unhashable"):
        hash(history)


def test_sums_and_copies_of_a_history_are_lists():
    history, rows = long(), list(long())
    more, none = [row(0)], list[Any]()
    assert history + more == [*rows, row(0)]
    assert more + history == [row(0), *rows]
    assert history + history == rows * 2
    assert history.copy() == rows
    assert {type(one) for one in (history.copy(), history + none, none + history, history[:2])} == {list}
    for other in ((), None):
        with pytest.raises(TypeError):
            history + other
        with pytest.raises(TypeError):
            other + history


class Store:
    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}

    def write(self, block: bytes) -> object:
        self.blocks[len(self.blocks)] = block
        return len(self.blocks) - 1

    def read(self, handle: Any) -> bytes:
        if handle not in self.blocks:
            raise OSError("the disk is gone")
        return self.blocks[handle]


def test_an_error_of_the_store_names_the_trial_and_what_has_its_results():
    store = Store()
    history = History(map(row, range(1, 5 * BLOCK_ROWS + 1)), store=store, owner="b1")
    del store.blocks[1]
    with pytest.raises(StorageError, match=r"results of trial b1 cannot be read.*disk is gone.*journal has"):
        list(history)
    # The other blocks can be read.
    assert history[:BLOCK_ROWS] + history[2 * BLOCK_ROWS :] == [
        row(number) for number in range(1, 5 * BLOCK_ROWS + 1) if (number - 1) // BLOCK_ROWS != 1
    ]


def test_a_trial_that_goes_back_to_a_block_that_cannot_be_read_continues(
    caplog: pytest.LogCaptureFixture,
):
    store = Store()
    history = History(map(row, range(1, 5 * BLOCK_ROWS + 1)), store=store, owner="b1")
    store.blocks.clear()
    history.cut_back(BLOCK_ROWS)
    assert "trial b1 goes back to iteration 64 and loses its older results" in caplog.text
    assert history == []
    assert history.record(row(BLOCK_ROWS + 1))


class Fragile:
    """Its objects can be unpickled as long as `intact` is true."""

    intact = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Fragile.made_again, ()

    @staticmethod
    def made_again() -> Fragile:
        if not Fragile.intact:
            raise ValueError("the device is gone")
        return Fragile()


def test_a_value_that_can_no_longer_be_unpickled_is_named_and_costs_no_other_row(
    monkeypatch: pytest.MonkeyPatch,
):
    rows = [row(number) for number in range(1, 5 * BLOCK_ROWS + 1)]
    rows[10]["net"] = Fragile()
    history = History(rows, owner="b1")
    assert isinstance(history[10]["net"], Fragile)
    monkeypatch.setattr(Fragile, "intact", False)
    named = (
        r"metric 'net' of result 10 \(training_iteration 11\) of trial b1 .*ValueError: the device is gone"
    )
    history[70]  # another block is unpacked now
    for read in (list, lambda rows: rows[10], lambda rows: list(reversed(rows)), lambda rows: rows[5:12]):
        with pytest.raises(StorageError, match=named):
            read(history)
    assert history[:10] + history[11:] == rows[:10] + rows[11:]
    assert (history[9], history[11]) == (rows[9], rows[11])
    # A result that was computed again replaces the one that cannot be read.
    assert not history.record(row(11, 7))
    assert history == [*rows[:10], row(11, 7), *rows[11:]]
    assert list(reversed(history)) == list(history)[::-1]


def test_a_trial_goes_back_to_rows_with_a_value_that_can_no_longer_be_unpickled(
    monkeypatch: pytest.MonkeyPatch,
):
    rows = [row(number) for number in range(1, 5 * BLOCK_ROWS + 1)]
    rows[10]["net"] = Fragile()
    history = History(rows)
    monkeypatch.setattr(Fragile, "intact", False)
    history.cut_back(20)
    assert numbers(history[:10]) == list(range(1, 11))
    # The value is packed and unpacked once more, and named as before.
    for number in range(21, 5 * BLOCK_ROWS):
        history.record(row(number))
    with pytest.raises(StorageError, match=r"metric 'net' of result 10 .*of a trial.*device is gone"):
        history[10]


def test_its_blocks_go_to_the_store():
    store = Store()
    history = History(map(row, range(1, 10 * BLOCK_ROWS + 1)), store=store)
    assert len(store.blocks) == 9
    assert numbers(history) == list(range(1, 10 * BLOCK_ROWS + 1))
    assert json.dumps(history[3]) == json.dumps(row(4))


def test_other_threads_see_all_rows_while_the_stored_ones_are_read_to_cut_back():
    rows = [row(number) for number in range(1, 301)]
    seen: list[Any] = []

    def read() -> History:
        seen.append((len(history), history[-1]))
        return History(rows[:299])

    history = History(rows[299:], stored=StoredRows(299, read))
    history.cut_back(200)
    assert seen == [(300, rows[299])]
    assert history == rows[:200]
    history.cut_back(0)
    assert history == []
    # All of the stored rows may go, too.
    again = History(rows[299:], stored=StoredRows(299, read))
    seen.clear()
    history = again
    again.cut_back(0)
    assert again == []
    assert again.is_at_hand


def test_a_history_that_cannot_be_read_stays_as_it_is():
    def read() -> History:
        raise OSError("disk")

    history = History([row(300)], stored=StoredRows(299, read))
    with pytest.raises(OSError, match="disk"):
        history.cut_back(200)
    assert len(history) == 300
    assert history[-1] == row(300)


def test_a_damaged_journal_costs_the_old_rows_of_a_trial_that_goes_back_not_its_experiment(
    caplog: pytest.LogCaptureFixture,
):
    def read() -> History:
        raise StorageError("the journal is damaged")

    history = History([row(300)], stored=StoredRows(299, read))
    assert not history.record(row(5, 7))
    history.cut_back(200)
    assert "goes back to iteration 200 and loses its older results" in caplog.text
    assert history == []
    assert history.record(row(201))
    assert history == [row(201)]


def test_what_was_recomputed_before_all_rows_were_removed_is_forgotten():
    history = History(map(row, range(2, 5 * BLOCK_ROWS)))
    # It precedes the first row, and so replaces none.
    assert not history.record(row(1, 7))
    history.cut_back(0)
    history.extend(map(row, range(1, 5 * BLOCK_ROWS)))
    assert history == long(5 * BLOCK_ROWS - 1)


def test_a_history_of_the_last_row_keeps_no_other():
    history = LastRow(owner="a")
    rows = [{"training_iteration": number} for number in range(1, 300)]
    assert all(history.record(row) for row in rows)
    assert history == rows[-1:]
    assert not history.record({"training_iteration": 298})
    again = {"training_iteration": 299, "loss": 1.0}
    assert not history.record(again)
    assert (history, history.newest) == ([again], [again])
    history.cut_back(298)
    assert history == []
    assert history.record(rows[0])
    assert (type(history.emptied()), history.emptied().owner) == (LastRow, "a")
