"""A user who was sent an experiment, or finds one on a bad disk, can read it without harm."""

from __future__ import annotations

import json
import logging
import os
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasktune.errors import ConfigError, StorageError
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.manifest import Manifest
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.columnar import count_rows, numbered, read_rows
from dasktune.storage.journal.journal_reader import JournalReader, read_journal
from dasktune.storage.journal.journal_writer import JournalWriter
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.storage.journal.segments import Header, next_epoch, segment_name
from dasktune.storage.journal.strict_json import parse
from dasktune.trial.checkpoint_record import CheckpointRecord

#: More rows than a valid journal of these tests has; who gives more is out of bounds.
MANY = 100_000


def report(seq: int, checkpoint: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "event": "ResultReported",
        "trial_id": "a",
        "seq": seq,
        "metrics": {"loss": seq / 4, "eval": {"acc": seq, "of": 9}, "pid": 71},
        "checkpoint": checkpoint,
        "awaits": False,
    }


def build(storage: Storage) -> CheckpointRecord:
    """Make a small experiment with everything in it."""
    store = ExperimentStore(storage)
    store.create({"format": 1, "name": "exp", "metric": "loss", "mode": "min"})
    files = {"weights": b"w" * 100, "deep/er": b"x", ".metadata.json": b'{"epoch": 3}'}
    record = store.checkpoints.commit(
        files, trial_dir="a", index=3, incarnation=2, iteration=7, metrics={"loss": 0.5}
    )
    store.append({"event": "Suggested", "trial_id": "a", "config": {"lr": 0.1, "$x": float("inf")}})
    for seq in range(5):
        store.append(report(seq))
    store.close()
    store = ExperimentStore(storage)
    told = {"do": "DeleteCheckpoint", "trial_id": "a", "checkpoint": record.to_json()}
    store.append({**report(9, record.to_json()), "actions": [told]})
    store.write_params("a", {"lr": 0.1})
    store.write_error("a", "ValueError: no")
    store.close()
    return record


def outcome(read: Callable[[], object]) -> tuple[object, str]:
    """Return what a reader returned, or the words with which it refused; nothing else may be."""
    try:
        return read(), ""
    except StorageError as refused:
        return None, str(refused) or "no words"


def read_everything(storage: Storage) -> int:
    """Use every reader, and return how many of them refused."""
    store = CheckpointStore(storage)
    found: list[CheckpointRecord] = []

    def read_records() -> None:
        for record in islice(JournalReader(storage), MANY):
            assert isinstance(record, dict)
            encode(record)
            if record.get("checkpoint") is not None:
                found.append(CheckpointRecord.from_json(record["checkpoint"]))
        assert len(list(islice(read_journal(storage, start=3), MANY))) < MANY

    def load() -> None:
        for record in found[:3]:
            loaded = store.load(record)
            assert isinstance(loaded.get_metadata(), dict)
            loaded.to_directory(None)

    readers: list[Callable[[], object]] = [
        read_records,
        load,
        ExperimentStore(storage).spec,
        lambda: next_epoch(storage),
        lambda: store.remove_stale("a", incarnation=99, first_index=99),
    ]
    return sum(outcome(read)[1] != "" for read in readers)


@pytest.fixture(scope="module")
def original() -> dict[str, bytes]:
    storage = Storage(f"memory://{uuid4().hex}")
    build(storage)
    return {name: storage.read_bytes(name) for name in storage.find()}


@pytest.fixture(scope="module", autouse=True)
def _small_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is copied to look at it must not be left anywhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("copies")))
        yield


def test_an_experiment_that_is_unharmed_is_read(original: dict[str, bytes]) -> None:
    assert {name.partition("/")[0] for name in original} == {"experiment.json", "journal", "trials"}
    storage = Storage(f"memory://{uuid4().hex}")
    record = build(storage)
    assert len(list(read_journal(storage))) == 7
    assert CheckpointStore(storage).load(record).get_metadata() == {"epoch": 3}
    assert read_everything(storage) == 0


# Changed at random

#: What somebody may write where something else stood.
HOSTILE = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        256,
        257,
        10**12,
        2**63,
        10**400,
        1e308,
        "",
        "..",
        "../../etc",
        "/etc/passwd",
        "a\\b",
        "a\0b",
        "\ud800",
        "*?[",
        "trials/../../x/checkpoint_000003_i02",
        "trials/b/checkpoint_000003_i02",
        "trials/a/checkpoint_000003_i02/../../../..",
        "a" * 300,
        [],
        {},
        [[]],
        ["a", None],
        {"$rows": 10**12},
        {"$$rows": 10**12},
        {"$float": []},
        {"$$float": "nan", "$float": "nan"},
        {"a": {"b": {"c": []}}},
        {"path": "..", "index": 0, "iteration": 0, "metrics": {}},
    ]
).map(deepcopy)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield ``(container, key)`` for everything in a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


@st.composite
def changed_json(draw: st.DrawFn, text: bytes) -> bytes:
    """Return JSON that was changed in a place or two, or its text where JSON cannot say it."""
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        found = list(places(value))
        if not found:
            break
        container, key = draw(st.sampled_from(found))
        kind = draw(st.sampled_from(["replace", "delete", "rename", "add"]))
        if kind == "replace":
            container[key] = draw(HOSTILE)
        elif kind == "delete":
            del container[key]
        elif isinstance(container, list):
            container.append(draw(HOSTILE))
        elif kind == "rename":
            container[draw(st.sampled_from(["..", "$rows", "$float", "", "\0"]))] = container.pop(key)
        else:
            container[draw(st.sampled_from(["$rows", "$journal", "../x", "trial_id"]))] = draw(HOSTILE)
    changed = json.dumps(value, separators=(",", ":")).encode()
    if draw(st.booleans()):
        changed = changed.replace(b":1", draw(st.sampled_from([b":NaN", b":1e999", b":01"])))
    if draw(st.booleans()):
        # The same key once more, which json.dumps would never write.
        changed = changed.replace(b"{", draw(st.sampled_from([b'{"index":7,', b'{"seq":1,'])), 1)
    return changed


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        gone = draw(st.sampled_from([0, 1, 7, len(content)]))
        pieces = [b"", b"\0", b"\n", b"\r", b'"', b"{", b"[" * 2000, b"9" * 5000, b"\xff", b"\\"]
        new = draw(st.sampled_from(pieces) | st.binary(max_size=4))
        content = content[:at] + new + content[at + gone :]
    return content


@st.composite
def changed_files(draw: st.DrawFn, original: dict[str, bytes]) -> dict[str, bytes]:
    files = dict(original)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(files)))
        lines = files[name].splitlines(keepends=True)
        how = draw(st.sampled_from(["json", "json", "bytes", "lines", "rename", "delete"]))
        if how == "json" and lines and ("json" in name):
            whole = not name.startswith("journal/")
            at = 0 if whole else draw(st.integers(0, len(lines) - 1))
            try:
                changed = draw(changed_json(files[name] if whole else lines[at]))
            except ValueError:
                continue  # it was changed before
            lines = [changed] if whole else [*lines[:at], changed + b"\n", *lines[at + 1 :]]
            files[name] = b"".join(lines)
        elif how == "lines" and lines:
            files[name] = b"".join(draw(st.permutations(lines + lines[:1])))
        elif how == "rename":
            other = draw(st.sampled_from([*sorted(files), "journal/000009-000000.jsonl"]))
            files[other] = files.pop(name)
        elif how == "delete":
            del files[name]
        else:
            files[name] = draw(changed_bytes(files[name]))
        if not files:
            break
    return files


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_experiment_is_read_or_refused(original: dict[str, bytes], data: st.DataObject) -> None:
    storage = Storage(f"memory://{uuid4().hex}")
    for name, content in data.draw(changed_files(original)).items():
        storage.write_bytes(name, content)
    try:
        read_everything(storage)
    finally:
        storage.remove_tree()


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_experiment_on_a_disk_is_read_or_refused(
    original: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("changed")))
    for name, content in data.draw(changed_files(original)).items():
        if not os.path.lexists(storage.path(name)):
            storage.write_bytes(name, content)
    read_everything(storage)
    storage.remove_tree()


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_line_is_read_or_refused(data: st.DataObject) -> None:
    line = data.draw(
        st.sampled_from(
            [
                encode(report(1)),
                b'{"$rows":3,"event":"ResultReported","seq":[1,2,3],"metrics":{"a":{"b":1}}}\n',
                encode({"v": float("nan"), "$w": 1}),
            ]
        )
    )
    changed = data.draw(changed_json(line) | changed_bytes(line) | st.binary(max_size=30))
    try:
        rows = count_rows(changed)
        records = list(read_rows(changed))
    except StorageError:
        return
    assert len(records) == rows <= 256


@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_manifest_or_header_is_read_or_refused(data: st.DataObject) -> None:
    files = {"a": {"size": 3, "crc32": "00000000"}}
    head = {"kind": "dasktune checkpoint", "format": 1, "index": 1, "iteration": 2, "writer": "w"}
    valid = json.dumps({**head, "incarnation": 3, "files": files}).encode()
    Manifest.decode(valid, "here")
    changed = data.draw(changed_json(valid) | changed_bytes(valid))
    manifest, words = outcome(lambda: Manifest.decode(changed, "here"))
    if isinstance(manifest, Manifest):
        counts = (manifest.index, manifest.iteration, manifest.incarnation)
        assert all(type(one) is int and one >= 0 for one in counts)
    else:
        assert "here" in words
    Manifest.is_manifest(changed)
    after = {"epoch": 1, "records": 2, "bytes": 3, "position": 4}
    header = {"$journal": {"format": 1, "epoch": 2, "writer": "w", "journal": "j", "after": after}}
    valid = json.dumps(header).encode()
    Header.decode(valid, "there")
    changed = data.draw(changed_json(valid) | changed_bytes(valid))
    header_read, words = outcome(lambda: Header.decode(changed, "there"))
    if isinstance(header_read, Header):
        end = header_read.after
        assert all(type(one) is int for one in (end.epoch, end.records, end.size, end.position))
    else:
        assert "there" in words


# Made to take time or room

NUMBER = b"9" * 2_000_000
BOMBS = {
    "rows": b'{"$rows":1000000000000}',
    "rows hidden": b'{"$$rows":1000000000000,"a":1}',
    "rows twice": b'{"$rows":3,"a":[1,2,3],"$rows":1000000000000}',
    "rows and rows": b'{"$rows":3,"a":[1,2,3],"$$rows":1000000000000}',
    "rows of digits": b'{"$rows":' + NUMBER + b',"a":1}',
    "rows as text": b'{"$rows":"3","a":1}',
    "no rows": b'{"$rows":0,"a":1}',
    "rows too many": b'{"$rows":257,"a":1}',
    "lists": b"[" * 1_000_000,
    "lists that end": b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "objects": b'{"a":' * 300_000,
    "columns within columns": b'{"$rows":3,"b":' + b'{"a":' * 200 + b"1" + b"}" * 201,
    "quotes": b'"' * 1_000_001,
    "escapes": b'{"a":"' + b'\\"' * 1_000_000,
    "brackets and escapes": b'{"a":"' + b'[\\"' * 500_000,
    "an integer": b'{"a":' + NUMBER + b"}",
    "an integer in a list": b'{"a":[1,' + NUMBER + b"]}",
    "a negative integer": b'{"a":-' + NUMBER + b"}",
    "not a number": b'{"a":NaN}',
    "infinity": b'{"a":[-Infinity]}',
    "a float that is none": b'{"a":{"$float":"1e5"}}',
    "a float that is a list": b'{"a":{"$float":[]}}',
    "a float that is a number": b'{"a":{"$float":1}}',
    "a float beyond all": b'{"a":{"$float":' + b"9" * 1000 + b"}}",
    "a key twice": b'{"a":1,"b":2,"a":3}',
    "a key twice after escaping": b'{"$$a":1,"$a":2}',
    "a key twice below": b'{"a":{"b":1,"b":1}}',
    "no object": b'"text"',
    "a trial elsewhere": b'{"trial_id":"../../etc"}',
    "a trial that is none": b'{"trial_id":7}',
    "a trial of two names": b'{"trial_id":"a/b"}',
    "a trial with a backslash": b'{"trial_id":"a\\\\b"}',
    "a trial with a NUL": b'{"trial_id":"a\\u0000"}',
    "a trial with half a character": b'{"trial_id":"\\ud800"}',
    "a checkpoint elsewhere": b'{"checkpoint":{"path":"/etc","index":0,"iteration":0,"metrics":{}}}',
    "a checkpoint that is none": b'{"checkpoint":"x"}',
    "actions that are none": b'{"actions":{"do":"StartTrial"}}',
    "an action that is none": b'{"actions":["StartTrial"]}',
    "an action elsewhere": b'{"actions":[{"do":"StartTrial","trial_id":".."}]}',
    "a deletion elsewhere": b'{"actions":[{"checkpoint":{"path":"..","index":0,"iteration":0,'
    b'"metrics":{}}}]}',
    "a folded trial elsewhere": b'{"$rows":3,"trial_id":["a","..","b"]}',
    "invalid text": b'{"a":"\xff"}',
    "another encoding": '{"a":1}'.encode("utf-16"),
    "a mark": b"\xef\xbb\xbf{}",
    "nothing": b"",
}
HARMLESS = {"rows hidden"}


@pytest.mark.parametrize("name", BOMBS)
def test_a_line_that_means_harm_is_refused_with_its_place(name: str) -> None:
    storage = Storage(f"memory://{uuid4().hex}")
    writer = JournalWriter(storage, 1)
    writer.append({"n": 0})
    writer.close()
    line = BOMBS[name] + b"\n"
    line = numbered(line, 2) if name in HARMLESS else line
    storage.write_bytes(segment_name(1, 1), b'{"n":0,"$n":1}\n' + line)
    tracemalloc.start()
    try:
        if name in HARMLESS:
            assert list(read_journal(storage))[1] == {"$rows": 10**12, "a": 1}
        else:
            with pytest.raises(StorageError, match=rf"line 2 of {segment_name(1, 1)} in memory://"):
                list(read_journal(storage))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        storage.remove_tree()
    assert peak < 1_000_000 + 30 * len(BOMBS[name])


def test_a_line_of_many_columns_takes_the_room_of_one_row_at_a_time() -> None:
    columns = ",".join(f'"{number}":0' for number in range(20_000))
    line = f'{{"$rows":256,{columns}}}\n'.encode()
    tracemalloc.start()
    rows = sum(len(row) == 20_000 for row in read_rows(line))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 256
    assert peak < 60 * len(line)


def test_a_journal_of_short_lines_takes_no_room_for_a_list_of_them() -> None:
    storage = Storage(f"memory://{uuid4().hex}")
    JournalWriter(storage, 1).close()
    content = b"".join(b'{"a":0,"$n":%d}\n' % number for number in range(1, 20_001))
    storage.write_bytes(segment_name(1, 1), content)
    tracemalloc.start()
    count = sum(1 for _ in JournalReader(storage))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    storage.remove_tree()
    assert count == 20_000
    assert peak < 1_000_000 + 5 * len(content)


def test_the_large_segments_of_a_disk_are_read_one_at_a_time(local: Storage) -> None:
    JournalWriter(local, 1).close()
    content = b'{"text":"%s"}\n' % (b"x" * 300_000)
    for number in range(1, 21):
        local.write_bytes(segment_name(1, number), numbered(content, number))
    tracemalloc.start()
    count = sum(1 for _ in JournalReader(local))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20
    assert peak < 8 * len(content)


@pytest.mark.parametrize("name", BOMBS)
def test_no_other_file_can_do_harm_either(name: str) -> None:
    content = BOMBS[name]
    with pytest.raises(StorageError):
        Manifest.decode(content, "here")
    assert not Manifest.is_manifest(content)
    with pytest.raises(StorageError):
        Header.decode(content, "here")
    storage = Storage(f"memory://{uuid4().hex}")
    storage.write_bytes("experiment.json", content)
    storage.write_bytes("c/.metadata.json", content)
    for read in (ExperimentStore(storage).spec, Checkpoint(storage.url + "/c").get_metadata):
        found, words = outcome(read)
        assert isinstance(found, dict) or ".json" in words
    storage.remove_tree()


def test_as_deep_as_is_written_can_be_read() -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = [deep]
    found = decode(encode({"deep": deep}))["deep"]
    for _ in range(60):
        (found,) = found
    assert parse(b"[" * 128 + b"]" * 128) == decode(b"[" * 128 + b"]" * 128)
    many = {"many": [[1]] * 1000, "text": "[" * 1000}
    assert decode(encode(many)) == many
    with pytest.raises(StorageError, match="deeper than 128"):
        parse(b"[" * 129 + b"]" * 129)


def test_large_integers_are_read_as_far_as_python_prints_them() -> None:
    record = {"v": 10**4000, "w": -(10**4000)}
    assert decode(encode(record)) == record


def test_segments_with_absurd_names_are_none(storage: Storage) -> None:
    writer = JournalWriter(storage, 1)
    writer.append({"n": 0})
    writer.close()
    names = ["9" * 30, "0000001", "\u0660" * 6, "1", "-1", "000002 "]
    for name in names:
        storage.write_bytes(f"journal/{name}-000000.jsonl", b"x")
        storage.write_bytes(f"journal/000001-{name}.jsonl", b"x")
    assert list(read_journal(storage)) == [{"n": 0}]
    assert next_epoch(storage) == 2
    storage.write_bytes(segment_name(999_999_999, 0), b"x")
    with pytest.raises(StorageError, match=r"Remove it: journal/999999999-000000\.jsonl"):
        next_epoch(storage)


def test_a_journal_without_a_whole_header_raises(storage: Storage) -> None:
    header = Header(epoch=1, after=JournalReader(storage).end).encode()
    storage.write_bytes(segment_name(1, 0), header[:-1])
    with pytest.raises(StorageError, match=r"line 1 of journal/000001-000000.jsonl .* is torn"):
        list(read_journal(storage))
    storage.write_bytes(segment_name(1, 0), b"")
    with pytest.raises(StorageError, match="is not a header"):
        list(read_journal(storage))


# Manifests and records that do not belong together


def rewrite(storage: Storage, record: CheckpointRecord, **changes: Any) -> None:
    name = f"{record.path}/.manifest.json"
    manifest = {**json.loads(storage.read_bytes(name)), **changes}
    storage.write_bytes(name, json.dumps(manifest).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"index": True},
        {"index": "3"},
        {"index": -1},
        {"iteration": 1.0},
        {"iteration": 2**70},
        {"incarnation": None},
        {"writer": 3},
        {"kind": "another"},
        {"files": []},
        {"files": {"a": []}},
        {"files": {"a": {"size": 1}}},
        {"files": {"a": {"size": -1, "crc32": "00000000"}}},
        {"files": {"a": {"size": True, "crc32": "00000000"}}},
        {"files": {"a": {"size": 1, "crc32": "-0000001"}}},
        {"files": {"a": {"size": 1, "crc32": 7}}},
        {"files": {"a\\b": {"size": 1, "crc32": "00000000"}}},
        {"files": {"a\0": {"size": 1, "crc32": "00000000"}}},
        {"files": {"\ud800": {"size": 1, "crc32": "00000000"}}},
    ],
)
def test_a_manifest_with_wrong_values_is_damaged(storage: Storage, changes: dict[str, Any]) -> None:
    record = build(storage)
    rewrite(storage, record, **changes)
    with pytest.raises(StorageError, match=r"manifest of checkpoint .*_i02 is damaged"):
        CheckpointStore(storage).load(record)


@pytest.mark.parametrize("changes", [{"index": 4}, {"incarnation": 1}])
def test_a_manifest_of_another_checkpoint_is_refused(storage: Storage, changes: dict[str, Any]) -> None:
    record = build(storage)
    rewrite(storage, record, **changes)
    with pytest.raises(StorageError, match="copied there from another place"):
        CheckpointStore(storage).load(record)


@pytest.mark.parametrize("version", [True, 1.0, "1", None, [], 10**4000])
def test_a_version_that_is_none_is_another_version(storage: Storage, version: Any) -> None:
    record = build(storage)
    rewrite(storage, record, format=version)
    with pytest.raises(StorageError, match="this dasktune reads format 1"):
        CheckpointStore(storage).load(record)


@pytest.mark.parametrize("name", ["a" * 300, "/".join(["a"] * 3000), "deep", "weights/x"])
def test_a_manifest_names_what_cannot_be_there(storage: Storage, name: str) -> None:
    record = build(storage)
    rewrite(storage, record, files={name: {"size": 1, "crc32": "00000000"}})
    with pytest.raises(StorageError, match="checkpoint"):
        CheckpointStore(storage).load(record)


PATHS = ["", "..", "/etc", "trials/a", "trials/../x/checkpoint_000003_i02", "experiment.json", 3]


@pytest.mark.parametrize("path", PATHS)
def test_a_record_cannot_lead_out_of_the_experiment(storage: Storage, path: Any, tmp_path: Path) -> None:
    build(storage)
    before = storage.find()
    store = CheckpointStore(storage)
    record = CheckpointRecord(path=path, index=3, iteration=7)
    for use in (store.load, store.delete, store.reference):
        with pytest.raises(StorageError, match="the path of a checkpoint must be trials/<trial>/"):
            use(record)
    assert storage.find() == before


def test_a_record_with_a_pattern_is_refused_where_it_would_be_one(remote: Storage) -> None:
    record = CheckpointRecord(path="trials/*/checkpoint_000003_i02", index=3, iteration=7)
    with pytest.raises(StorageError, match="patterns"):
        CheckpointStore(remote).load(record)


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "../../x", "a/b", "a\\b", "a\0", "a\n"])
def test_a_hostile_trial_is_written_nowhere(storage: Storage, name: str) -> None:
    build(storage)
    before = storage.find()
    store = ExperimentStore(storage)
    with pytest.raises(ConfigError, match="trial_dir must be one name"):
        store.write_params(name, {})
    with pytest.raises(ConfigError, match="trial_dir must be one name"):
        store.write_error(name, "no")
    with pytest.raises(ConfigError, match="trial_dir must be one name"):
        store.checkpoints.commit({}, trial_dir=name, index=0, incarnation=1, iteration=1, metrics={})
    store.close()
    assert storage.find() == before


def test_names_that_could_not_be_loaded_are_not_committed(storage: Storage, tmp_path: Path) -> None:
    store = CheckpointStore(storage)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a\\b").write_bytes(b"1")
    for source in ({"a\\b": b"1"}, tmp_path / "source"):
        with pytest.raises(ConfigError, match="files with relative names"):
            store.commit(source, trial_dir="a", index=0, incarnation=1, iteration=1, metrics={})
    assert storage.find() == []


# Links, pipes and devices


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody else's files."""
    place = tmp_path / "outside"
    (place / "deep").mkdir(parents=True)
    (place / "private").write_bytes(b"w" * 100)
    (place / ".manifest.json").write_bytes(b"{}")
    return place


def moved(storage: Storage, outside: Path, name: str) -> Path:
    """Put a link in the place of a part of an experiment, to where that part is now."""
    here, there = Path(storage.path(name)), outside / "moved"
    here.rename(there)
    here.symlink_to(there)
    return there


def everything(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["trials", "trials/a", "trials/a/checkpoint_000003_i02", ".manifest.json", "weights"]
)
def test_a_checkpoint_behind_a_link_is_neither_read_nor_deleted(
    local: Storage, outside: Path, name: str
) -> None:
    record = build(local)
    path = name if name.startswith("trials") else f"{record.path}/{name}"
    moved(local, outside, path)
    before = everything(outside)
    store = CheckpointStore(local)
    with pytest.raises(StorageError, match="link"):
        store.load(record)
    # A new object, as on another machine.
    with pytest.raises(StorageError, match="link"):
        CheckpointStore(Storage(local.url)).load(record)
    if name.startswith("trials"):
        with pytest.raises(StorageError, match="link"):
            store.remove_stale("a", incarnation=99, first_index=99)
    if name != "weights":
        with pytest.raises(StorageError, match="link"):
            store.delete(record)
    else:
        store.delete(record)
    assert everything(outside) == before


@pytest.mark.parametrize("target", ["private", "deep", "missing"])
def test_what_leads_out_of_a_checkpoint_is_found_though_no_manifest_lists_it(
    local: Storage, outside: Path, target: str
) -> None:
    record = build(local)
    os.symlink(outside / target, local.path(record.path, "deep", "extra"))
    with pytest.raises(StorageError, match=r"must be plain files, got 'deep/extra'"):
        CheckpointStore(local).load(record)


def test_a_half_written_checkpoint_behind_a_link_is_not_swept(local: Storage, outside: Path) -> None:
    os.makedirs(local.path("trials", "a"))
    os.symlink(outside / "deep", local.path("trials", "a", "checkpoint_000001_i01"))
    with pytest.raises(StorageError, match="link"):
        CheckpointStore(local).remove_stale("a", incarnation=9, first_index=9)
    assert (outside / "deep").is_dir()


@pytest.mark.parametrize("name", ["journal", "journal/000001-000000.jsonl", "experiment.json"])
def test_a_journal_behind_a_link_is_not_read(local: Storage, outside: Path, name: str) -> None:
    build(local)
    moved(local, outside, name)
    with pytest.raises(StorageError, match="link"):
        ExperimentStore(local).spec() if name == "experiment.json" else list(read_journal(local))
    assert read_everything(local) > 0


@pytest.mark.parametrize(
    "name",
    [
        "experiment.json",
        "journal/000001-000000.jsonl",
        "trials/a/checkpoint_000003_i02/.manifest.json",
        "trials/a/checkpoint_000003_i02/weights",
        "trials/a/checkpoint_000003_i02/.metadata.json",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "endless", "directory", "unreadable name"])
def test_a_file_that_is_none_is_refused(local: Storage, name: str, kind: str) -> None:
    record = build(local)
    path = local.path(name)
    os.unlink(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        os.symlink("/dev/zero", path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        os.symlink("x" * 200, path)
    readers: dict[str, Callable[[], object]] = {
        "e": ExperimentStore(local).spec,
        "j": lambda: list(read_journal(local)),
        "t": lambda: CheckpointStore(local).load(record),
    }
    if name.endswith(".metadata.json") and kind == "directory":
        CheckpointStore(local).load(record)  # nothing vouches for it, and nothing reads it
    else:
        with pytest.raises(StorageError):
            readers[name[0]]()


def test_directories_that_are_files_are_refused(local: Storage) -> None:
    record = build(local)
    local.remove_tree("journal")
    local.write_bytes("journal", b"")
    with pytest.raises(StorageError, match="cannot read journal in"):
        list(read_journal(local))
    with pytest.raises(StorageError, match="cannot read journal in"):
        next_epoch(local)
    local.remove_tree("trials")
    local.write_bytes("trials", b"")
    with pytest.raises(StorageError, match="cannot read the checkpoint"):
        CheckpointStore(local).load(record)
    with pytest.raises(StorageError, match="cannot read the checkpoints of 'a'"):
        CheckpointStore(local).remove_stale("a", incarnation=9, first_index=9)


@pytest.mark.parametrize("name", ["trials", "trials/a"])
def test_nothing_is_written_through_a_link(
    local: Storage, outside: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    build(local)
    moved(local, outside, name)
    before = everything(outside)
    store = ExperimentStore(local)
    with pytest.raises(StorageError, match="link"):
        store.checkpoints.commit({"x": b"1"}, trial_dir="a", index=9, incarnation=1, iteration=1, metrics={})
    with caplog.at_level(logging.WARNING):
        store.write_error("a", "no")
        store.write_params("a", {"lr": 0.2})
        store.close()
    assert "must be a plain file or directory, got a link" in caplog.text
    assert everything(outside) == before


def test_links_in_the_way_that_the_user_named_are_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    for storage in (Storage(f"{tmp_path}/home"), Storage(f"{tmp_path}/home").child("exp")):
        record = build(storage)
        assert "experiment.json" in storage.names()
        assert "experiment.json" in storage.find()
        assert CheckpointStore(storage).load(record).get_metadata() == {"epoch": 3}
        assert read_everything(storage) == 0
