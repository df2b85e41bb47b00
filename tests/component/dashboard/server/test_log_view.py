"""The output of the selected trial on its page: read in a thread, bounded, by rank."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from bokeh.document import Document
from bokeh.models import DataTable, PreText, Tabs
from projection_kit import RecordFeed, about, projection_of, result, started, suggested

from dasktune.dashboard.model.trial_output import log_files_of, read_log
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.parts.log_view import LogView
from dasktune.dashboard.server.viewer import Viewer
from dasktune.errors import StorageError
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.storage import Storage

RANKS = [["tcp://10.0.0.1:4000", []], ["tcp://10.0.0.2:4000", []]]


@pytest.fixture
def storage(tmp_path):
    """Return the directory of an experiment whose trials' output is kept."""
    place = Storage(tmp_path / "my exp")
    TunerFile({"run_config.log_to_file": {"value": True}}).write(place)
    return place


def trials():
    records = [
        suggested("many"),
        {**started("many", 0.0), "ranks": RANKS},
        suggested("one"),
        started("one", 0.0),
        result("one", 1, 1.0, loss=1.0),
    ]
    return projection_of(*records)


def write(storage, trial, name, content):
    storage.write_bytes(f"trials/{trial}/{name}", content)


def texts(view):
    """Return the titles and the texts that a viewer sees."""
    boxes = [box.children for box in view.root.children[1:] if box.visible]
    return [(title.text, text.text) for title, text in boxes]


def note(view):
    """Return the sentence about the files."""
    return view.root.select_one({"name": "log note"}).text


def shown(view, projection, expected):
    """Update the view until the text of its first box is the expected one."""
    until = time.monotonic() + 60
    while not texts(view) or texts(view)[0][1] != expected:
        assert time.monotonic() < until, texts(view)
        view.update(projection.trials)
        time.sleep(0.001)  # between two looks
    return texts(view)


def test_the_output_of_the_selected_trial_is_shown_and_followed(storage):
    projection, now = trials(), [0.0]
    write(storage, "one", "stdout", b"epoch 1\n<b>bold</b>\x1b[31m\n")
    view = LogView(storage, clock=lambda: now[0])
    view.update(projection.trials)
    assert not view.root.visible
    view.select(1)
    assert view.root.visible
    assert view.is_waiting
    first = shown(view, projection, "epoch 1\n<b>bold</b>?[31m")
    assert first == [
        ("stdout", "epoch 1\n<b>bold</b>?[31m"),
        ("stderr", "(nothing has been printed so far)"),
    ]
    assert not view.is_waiting
    assert f"dasktune logs '{storage}' one" in note(view)
    write(storage, "one", "stdout", b"epoch 1\nepoch 2\n")
    now[0] += 2.5
    shown(view, projection, "epoch 1\nepoch 2")
    view.select(None)
    assert not view.root.visible


def test_each_rank_can_be_chosen_and_another_trial_s_text_is_never_shown_for_it(storage):
    projection = trials()
    for rank, name in enumerate(("stdout", "rank_1_stdout")):
        write(storage, "many", name, b"of rank %d\n" % rank)
    write(storage, "one", "stdout", b"of one\n")
    view = LogView(storage)
    view.select(0)
    shown(view, projection, "of rank 0")
    assert view.rank_select.visible
    assert view.rank_select.options == ["0", "1"]
    view.rank_select.value = "1"
    view.update(projection.trials)
    assert "of rank 0" not in str(texts(view))
    shown(view, projection, "of rank 1")
    assert "--rank 1" in note(view)
    view.select(1)
    assert texts(view) == []
    shown(view, projection, "of one")
    assert not view.rank_select.visible
    # A journal that was replaced may have fewer trials.
    view.update([])


def test_only_the_end_of_a_long_file_is_read(storage):
    lines = b"".join(b"line %05d\n" % number for number in range(10_000))
    write(storage, "one", "stdout", lines)
    log = read_log(storage, "trials/one/stdout", max_bytes=1_000)
    kept = log.text.splitlines()
    assert kept[-1] == "line 09999"
    assert kept[0] == f"line {10_000 - len(kept):05}"
    assert log.left_out == len(lines) - 11 * len(kept)
    view, projection = LogView(storage), trials()
    view.select(1)
    shown(view, projection, read_log(storage, "trials/one/stdout", max_bytes=32 * 1024).text)
    assert texts(view)[0][0].startswith("stdout, without the first ")


def test_a_progress_bar_longer_than_what_is_read_shows_its_last_state(storage):
    states = b"".join(b"\r%3d %% of the epoch" % number for number in range(101))
    for after, expected in (
        (b"", "100 % of the epoch"),
        (b"\n", "100 % of the epoch"),
        (b"\r\ndone\n", "100 % of the epoch\ndone"),
    ):
        write(storage, "one", "stderr", states + after)
        assert read_log(storage, "trials/one/stderr", max_bytes=200).text == expected
    write(storage, "one", "stderr", b"x" * 1_000 + b"\n")
    assert read_log(storage, "trials/one/stderr", max_bytes=200).text == "x" * 199


@pytest.mark.parametrize("lines", [1, 2, 9_000, 20_000])
def test_the_last_lines_are_found_however_long_the_file(storage, lines):
    every = [f"line {number:05}" for number in range(10_000)]
    write(storage, "one", "stdout", "\n".join(every).encode() + b"\n")
    log = read_log(storage, "trials/one/stdout", lines=lines)
    assert log.text.split("\n") == every[-lines:]
    assert log.left_out == 11 * max(0, 10_000 - lines)


def test_a_view_says_why_there_is_no_output(storage, tmp_path):
    projection = trials()
    view = LogView(Storage(tmp_path / "none"))
    view.select(1)
    until = time.monotonic() + 60
    while "is not kept" not in note(view):
        assert time.monotonic() < until
        view.update(projection.trials)
    assert texts(view) == []
    (tmp_path / "secret").write_text("password")
    (tmp_path / "my exp" / "trials" / "one").mkdir(parents=True)
    (tmp_path / "my exp" / "trials" / "one" / "stdout").symlink_to(tmp_path / "secret")
    view = LogView(storage)
    view.select(1)
    while "cannot be read" not in note(view):
        assert time.monotonic() < until
        view.update(projection.trials)
    assert texts(view) == []
    assert LogView(None).root.visible is False


def test_a_slow_storage_does_not_hold_up_the_loop(storage):
    gate, has_begun = threading.Event(), threading.Event()

    @contextmanager
    def slow():
        has_begun.set()
        gate.wait(60)
        yield

    write(storage, "one", "stdout", b"text\n")
    projection, view = trials(), LogView(storage, slow)
    known = set(threading.enumerate())
    view.select(1)
    view.update(projection.trials)
    assert has_begun.wait(60)
    # It returns at once, and starts no second thread.
    for _ in range(3):
        view.update(projection.trials)
    assert texts(view) == []
    begun = [one.name for one in set(threading.enumerate()) - known]
    assert begun.count("dasktune-logs") == 1
    gate.set()
    shown(view, projection, "text")


def test_a_viewer_shows_the_output_below_the_details_and_once_more_at_the_end(storage):
    feed = RecordFeed()
    live = LiveExperiment(trials, feed, storage=storage)
    write(storage, "one", "stdout", b"before\n")
    document = Document()
    live.poll()
    viewer = Viewer(live, document)
    tabs = document.select_one({"type": Tabs})
    tabs.active = 1
    viewer.update()
    table = document.select_one({"type": DataTable})
    row = [int(place) for place in table.source.data["place"]].index(1)
    table.source.selected.indices = [row]
    until = time.monotonic() + 60

    def output():
        return document.select_one({"type": PreText, "name": "log 0"}).text

    while output() != "before":
        assert time.monotonic() < until
        viewer.update()
    write(storage, "one", "stdout", b"before\nlast words\n")
    feed.put(about("TrialEnded", "one", 2.0, status="TERMINATED"))
    live.poll()
    for _ in viewer.show_end(time.monotonic() + 60):
        pass
    assert output() == "before\nlast words"
    # A row that is selected before the connection ends cannot be read any more.
    table.source.selected.indices = [1 - row]
    assert output() == "before\nlast words"
    assert "Reading" not in document.select_one({"name": "log note"}).text


def test_a_setting_that_cannot_be_read_is_not_taken_for_output_that_is_not_kept(storage):
    storage.write_bytes("tuner.json", b"{")
    with pytest.raises(StorageError, match=r"tuner\.json in .* is not a line of strict JSON"):
        log_files_of(storage)
    projection, view = trials(), LogView(storage)
    view.select(1)
    until = time.monotonic() + 60
    while "cannot be read" not in note(view):
        assert time.monotonic() < until
        view.update(projection.trials)
    assert "not kept" not in note(view)


def test_a_directory_of_an_old_experiment_keeps_no_output(tmp_path):
    assert log_files_of(Storage(tmp_path)) is None
    (tmp_path / "stdout").mkdir()
    with pytest.raises(StorageError, match="directory"):
        read_log(Storage(tmp_path), "stdout")
