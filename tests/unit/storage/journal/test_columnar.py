from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.errors import StorageError
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.columnar import can_pack_columns, count_rows, lines_of, unpack_columns
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.json_lines import decode, encode


def report(seq: int, **metrics: Any) -> dict[str, Any]:
    return {
        "event": "ResultReported",
        "trial_id": "a",
        "seq": seq,
        "metrics": metrics,
        "checkpoint": None,
        "awaits": False,
    }


def read(lines: list[bytes]) -> list[dict[str, Any]]:
    return [record for line in lines for record in unpack_columns(decode(line))]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([2**80, "", "x", '"$', "$rows"]),
    st.floats(),
    st.lists(st.integers(0, 1), max_size=2),
    st.dictionaries(st.sampled_from(["a", "$b"]), st.integers(0, 1), max_size=2),
)
METRICS = st.dictionaries(st.sampled_from(["loss", "acc", "$x", 3]), VALUES, max_size=3)


@settings(max_examples=60)
@given(st.lists(METRICS, max_size=8), st.booleans())
def test_records_are_read_as_if_each_had_its_own_line(many: list[dict[Any, Any]], same: bool):
    if same:
        many = [{"loss": 0.5, "n": i, **many[0]} for i, _ in enumerate(many)]
    records = [report(i, **{}) | {"metrics": metrics} for i, metrics in enumerate(many)]
    lines = list(lines_of(records))
    assert sum(map(count_rows, lines)) == len(records)
    # As text: NaN is not equal to itself, and 1 is to True.
    apart = [decode(encode(record)) for record in records]
    assert repr(read(lines)) == repr(apart)


def test_a_stream_of_results_becomes_a_short_line():
    many = [report(i, loss=i / 4, eval={"acc": i, "of": 9}, pid=71, done=False) for i in range(3)]
    (line,) = lines_of(many)
    assert json.loads(line) == {
        "$rows": 3,
        "event": "ResultReported",
        "trial_id": "a",
        "seq": [0, 1, 2],
        "metrics": {
            "loss": [0.0, 0.25, 0.5],
            "eval": {"acc": [0, 1, 2], "of": 9},
            "pid": 71,
            "done": False,
        },
        "checkpoint": None,
        "awaits": False,
    }


@pytest.mark.parametrize(
    "odd",
    [
        {"loss": [1.0]},
        {"loss": float("nan")},
        {"loss": {"a": 1}},
        {"loss": {"b": "$c"}},
        {"loss": object},
        {"loss": "x", "more": 1},
        {"$loss": 1},
    ],
)
def test_results_that_have_no_columns_keep_their_lines(odd: dict[str, Any]):
    (*_, last) = records = [report(0, loss={"b": 1}), report(1, loss={"b": 1}), report(2, **odd)]
    assert list(lines_of(records))[-1] == encode(last)


def test_equal_values_of_different_kinds_stay_apart():
    records = [report(i, a=a, zero=zero) for i, (a, zero) in enumerate([(1, 0.0), (True, -0.0)] * 2)]
    (line,) = lines_of(records)
    assert repr(read([line])) == repr(records)


def test_a_long_run_becomes_several_lines():
    lines = list(lines_of([report(i, loss=i) for i in range(600)]))
    assert [count_rows(line) for line in lines] == [256, 256, 88]


def test_only_results_without_a_decision_are_folded():
    assert can_pack_columns(report(1))
    assert not can_pack_columns(report(1) | {"actions": []})
    assert not can_pack_columns({"event": "TrialStarted"})


def write(storage: Storage, *numbers: int, epoch: int = 1) -> None:
    writer = JournalWriter(storage, epoch)
    writer.append({"event": "TrialStarted", "seq": -1})
    for number in numbers:
        writer.append(report(number, loss=number / 2))
    writer.append({"event": "TrialEnded", "seq": -2})
    assert writer.commit(force=True) == writer.close()


def test_the_journal_is_read_from_any_record_on(storage: Storage):
    write(storage, *range(300))
    write(storage, *range(5), epoch=2)
    everything = list(read_journal(storage))
    assert [record["seq"] for record in everything] == [-1, *range(300), -2, -1, *range(5), -2]
    for start in (0, 1, 2, 256, 257, 300, 302, 305, 308, 309):
        reader = JournalReader(storage, start=start)
        assert list(reader) == everything[start:]
        assert reader.end.position == 309


def test_what_waits_for_its_commit_counts_by_records(remote: Storage):
    writer = JournalWriter(remote, 1)
    writer.append(report(0, loss=0.0))
    assert writer.commit(force=True) == 1
    for seq in range(1, 5):
        assert writer.append(report(seq, loss=0.0)) == seq + 1
    assert writer.commit() == 1
    assert writer.append(report(5, loss=0.0)) == 6
    assert writer.close() == 6
    assert [record["seq"] for record in read_journal(remote)] == list(range(6))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"$rows":4', b'"$rows":5', "a column of 4 values in a line of 5 rows"),
        (b'"$rows":4', b'"$rows":"4"', "not a number of rows"),
    ],
)
def test_a_damaged_line_raises_with_its_place(local: Storage, old: bytes, new: bytes, words: str):
    write(local, *range(4))
    (name,) = local.names("journal")
    content = local.read_bytes(f"journal/{name}")
    assert old in content
    local.write_bytes(f"journal/{name}", content.replace(old, new))
    with pytest.raises(StorageError, match=f"line 3 of .*{words}"):
        list(read_journal(local))


@pytest.mark.parametrize("count", [0, -1, 257, 10**12, 10**400, True, 2.0, "2", None, [2]])
def test_no_count_is_believed_that_is_not_written(count: Any):
    with pytest.raises(StorageError, match="not a number of rows"):
        unpack_columns({"$rows": count, "a": 1})
