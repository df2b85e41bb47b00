"""The list of experiments, read from the journals in a directory."""

from __future__ import annotations

from projection_kit import about, asha_journal, result, started, suggested

from dasktune.dashboard.server.listing.experiment_summaries import ExperimentSummaries
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.leader.leader_lock import LeaderLock


def write(place, records, **spec):
    store = ExperimentStore(Storage(place))
    store.create({"name": place.name, "metric": "loss", "mode": "min", **spec})
    store.begin()
    for record in records:
        store.append(record)
    store.commit(force=True)
    return store


def read(summaries, names):
    while summaries.refresh(names, {}):
        pass
    return {one.name: one for one in summaries.rows}


RUNNING = [
    suggested("a", 1.0),
    started("a", 2.0),
    result("a", 1, 3.0, loss=0.5),
    about("TrialFailed", "a", 4.0, status="ERROR", error={"message": "no", "traceback": "no"}),
    suggested("b", 5.0),
    started("b", 5.0),
    result("b", 1, 7.0, loss=0.25),
]


def test_a_row_says_what_became_of_an_experiment(tmp_path):
    records = asha_journal()
    write(tmp_path / "whole", records, total_trials=30, created="2026-11-22T16:49:14+00:00").close()
    write(tmp_path / "part", RUNNING, total_trials=4).close()
    found = read(ExperimentSummaries(Storage(tmp_path)), ["whole", "part"])
    whole, part = found["whole"], found["part"]
    assert (whole.state, whole.done, whole.total, whole.failed) == ("finished", 30, 30, 0)
    assert whole.best == min(one["metrics"]["loss"] for one in records if one["event"] == "ResultReported")
    assert (whole.goal, whole.created) == ("loss (min)", "2026-11-22T16:49:14")
    assert whole.elapsed_s == records[-1]["time"] - records[0]["time"]
    assert (part.state, part.best, part.done, part.failed) == ("interrupted", 0.25, 1, 1)


def test_a_row_follows_an_experiment_that_runs_and_one_that_is_restored(tmp_path):
    now = [0.0]
    summaries = ExperimentSummaries(Storage(tmp_path), lambda: now[0])
    with LeaderLock(Storage(tmp_path / "run")):
        store = write(tmp_path / "run", RUNNING)
        assert read(summaries, ["run"])["run"].state == "live"
        store.append(result("b", 2, 8.0, loss=0.125))
        store.commit(force=True)
        now[0] += 60.0
        assert read(summaries, ["run"])["run"].best == 0.125
        store.close()
    now[0] += 60.0
    assert read(summaries, ["run"])["run"].state == "interrupted"
    # Without new records its journal is not read again; with new ones the row changes.
    before = summaries.rows[0]
    now[0] += 60.0
    assert read(summaries, ["run"])["run"] is before
    store = ExperimentStore(Storage(tmp_path / "run"))
    store.begin()
    store.append(about("TrialEnded", "b", 9.0, status="TERMINATED"))
    store.commit(force=True)
    store.close()
    now[0] += 60.0
    after = read(summaries, ["run"])["run"]
    assert (after.done, after.best) == (2, 0.125)


def test_a_long_journal_is_read_in_parts_and_the_rows_say_so(tmp_path):
    write(tmp_path / "long", asha_journal()).close()
    ticks = iter(range(10_000))
    summaries = ExperimentSummaries(Storage(tmp_path), lambda: float(next(ticks)))
    assert summaries.refresh(["long"], {"pipe": "not a file"})
    assert [(one.name, one.state) for one in summaries.rows] == [("long", "reading"), ("pipe", "unreadable")]


def test_rows_of_directories_that_are_gone_vanish(tmp_path):
    write(tmp_path / "one", RUNNING).close()
    summaries = ExperimentSummaries(Storage(tmp_path))
    assert read(summaries, ["one"]).keys() == {"one"}
    assert read(summaries, []) == {}
