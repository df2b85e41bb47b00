"""Directories that revision dd8d971 has written are read, and gone on with, as it did itself.

`tests/fixtures/make_fixtures.py` has made them, and tells how. Since that revision nearly all
private modules have moved, which its pickles name.
"""

from __future__ import annotations

import csv
import json
import logging
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fixture_kit as kit
import pytest
from distributed import LocalCluster
from s3_kit import S3Server

import dasktune as tune
from dasktune.dashboard.model.load import load_projection
from dasktune.errors import ConfigError
from dasktune.results.journal_repair import diagnose_journal
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.compression import compress_file
from dasktune.storage.journal.journal_reader import read_journal

FIXTURES = Path(__file__).parents[1] / "fixtures" / "dd8d971"

FINISHED = {
    "finished_asha": kit.train,
    "finished_class": kit.Climber,
    "finished_pbt": kit.train,
}
CUT = {name: make()["trainable"] for name, (make, _) in kit.ONE_AT_A_TIME.items()}
LOCAL: dict[str, Any] = {**FINISHED, "killed_asha": kit.train, "classic": kit.train, **CUT}

#: They pickle a function of their own by its bytecode, which no other version of Python reads.
BYTECODE = ("hyperopt_median", "bayesopt_promoting")


@pytest.fixture(autouse=True)
def _nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that no snapshot, object or state was skipped: the driver warns if it skips one."""
    yield
    records = [one for when in ("setup", "call") for one in caplog.get_records(when)]
    ours = [one for one in records if one.name.startswith("dasktune")]
    said = [one.getMessage() for one in ours if one.levelno >= logging.WARNING]
    # The workers of a busy machine may start late.
    assert [one for one in said if not one.startswith("the cluster has no workers")] == []


def expected(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text())
    return told


def copy(name: str, place: Path) -> Path:
    """Put an experiment somewhere else than where it was written, as a user may."""
    if name in BYTECODE and not same(name, "python", parts=2):
        pytest.skip("the directory holds bytecode of another version of Python")
    path = Path(shutil.copytree(FIXTURES / name / "experiment", place / "run"))
    for lease in path.glob("driver/*.json"):
        # The driver was killed on another machine, and no test waits for its 30 s to pass.
        lease.write_text(json.dumps({**json.loads(lease.read_text()), "ttl_s": 0.2}))
    return path


def same(name: str, *packages: str, parts: int = 3) -> bool:
    """Whether these have the versions with which a directory was written."""
    made_with = expected(name)["made_with"]
    now = {one: platform.python_version() if one == "python" else version(one) for one in packages}
    return all(made_with[one].split(".")[:parts] == now[one].split(".")[:parts] for one in packages)


def is_exact(name: str) -> bool:
    """Whether a searcher draws here what it drew there."""
    return bool(expected(name)["exact"]) and same(
        name, "numpy", "optuna", "hyperopt", "bayesian-optimization", "scikit-learn"
    )


def found(path: Any, trainable: Any, **options: Any) -> dict[str, Any]:
    """Return what is found without a cluster, as the generator writes it."""
    grid = tune.Tuner.restore(path, trainable, **options).get_results()
    analysis = tune.ExperimentAnalysis(path, **options)
    told: dict[str, Any] = {"trials": kit.facts(grid)}
    assert kit.facts(analysis.trials) == told["trials"]
    assert kit.facts([tune.Result.from_path(one.path, **options) for one in grid]) == told["trials"]
    if analysis.default_metric:
        told["best_config"] = kit.plain(grid.get_best_result().config)
        told["best_of_all"] = kit.plain(analysis.get_best_config(scope="all"))
    return told


def without_reasons(told: dict[str, Any]) -> dict[str, Any]:
    """Leave out text for people, which another version may word differently."""
    trials = [{**trial, "reason": None} for trial in told["trials"]]
    return {**told, "trials": trials}


def nearly(value: Any) -> Any:
    """Return a value that numbers equal which differ by rounding.

    Another processor sums in another order, and where a model is optimised it ends at another of
    the points that are equally good.
    """
    if isinstance(value, dict):
        return {key: nearly(one) for key, one in value.items()}
    if isinstance(value, list):
        return [nearly(one) for one in value]
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def assert_resumes(name: str, after: dict[str, Any]) -> None:
    """All that was recorded is kept, and the experiment has come to its end."""
    told = expected(name)
    if is_exact(name):
        assert without_reasons(after) == nearly(without_reasons(told["after"]))
    assert len(after["trials"]) == len(told["after"]["trials"])
    assert {one["status"] for one in after["trials"]} == {"TERMINATED"}
    for then, now in zip(told["before"]["trials"], after["trials"], strict=False):
        assert now["trial_id"] == then["trial_id"]
        assert now["folder"] == then["folder"]
        assert now["history"][: len(then["history"])] == then["history"]
        if then["status"] == "TERMINATED":
            assert now == then
        else:
            assert now["config"].keys() == then["config"].keys()


def dasktune(*arguments: Any) -> Any:
    command = [sys.executable, "-m", "dasktune", *map(str, arguments), "--format", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", LOCAL)
def test_what_it_recorded_is_read_without_a_cluster(name: str, tmp_path: Path):
    assert found(copy(name, tmp_path), LOCAL[name]) == expected(name)["before"]


@pytest.mark.parametrize("name", ["finished_asha", "killed_asha", "classic"])
def test_the_command_line_shows_what_it_showed(name: str, tmp_path: Path):
    shown = dasktune("show", copy(name, tmp_path))
    then = expected(name)["shown"]
    assert {key: shown[key] for key in then} == then


def test_the_command_line_lists_all_of_them():
    listed = {one["name"].split("/")[0]: one for one in dasktune("ls", FIXTURES)}
    assert listed.keys() >= {*LOCAL, *kit.SEARCHES, "on_s3"}
    states = {name: one["state"] for name, one in listed.items()}
    assert {states[name] for name in FINISHED} == {"finished"}
    assert {states[name] for name in CUT} == {"interrupted"}


@pytest.mark.parametrize("name", FINISHED)
def test_what_was_finished_is_left_as_it_is(name: str, pair: LocalCluster, tmp_path: Path):
    path = copy(name, tmp_path)
    results = tune.Tuner.restore(path, FINISHED[name], client=pair).fit()
    assert kit.facts(results) == expected(name)["before"]["trials"]
    assert found(path, FINISHED[name]) == expected(name)["before"]


def test_what_was_finished_is_extended(pair: LocalCluster, tmp_path: Path):
    path = copy("finished_class", tmp_path)
    more = replace(kit.finished_class()["tune_config"], num_samples=5)
    tuner = tune.Tuner.restore(path, kit.Climber, tune_config=more, client=pair)
    results = kit.facts(tuner.fit())
    assert results[:4] == expected("finished_class")["before"]["trials"]
    assert results[4]["results"] >= 1


def test_a_trial_that_had_failed_restarts(pair: LocalCluster, tmp_path: Path):
    path = copy("finished_asha", tmp_path)
    tuner = tune.Tuner.restore(path, kit.train, restart_errored=True, client=pair)
    results = kit.facts(tuner.fit())
    then = expected("finished_asha")["before"]["trials"]
    # It fails again: its configuration says so.
    assert [one["status"] for one in results] == [one["status"] for one in then]
    assert [one["history"] for one in results] == [one["history"] for one in then]


@pytest.mark.parametrize("name", ["killed_asha", *CUT])
def test_what_was_cut_off_finishes(name: str, pair: LocalCluster, tmp_path: Path):
    path = copy(name, tmp_path)
    results = tune.Tuner.restore(path, LOCAL[name], client=pair).fit()
    after = found(path, LOCAL[name])
    assert kit.facts(results) == after["trials"]
    assert_resumes(name, after)


@pytest.mark.slow
def test_what_lies_in_an_object_store_finishes(s3: S3Server, pair: LocalCluster, tmp_path: Path):
    told, storage, options = expected("on_s3"), s3.storage(), s3.options()
    storage.fs.put(str(FIXTURES / "on_s3" / "experiment"), f"{storage.path()}/run", recursive=True)
    url = f"s3://{storage.path()}/run"
    assert found(url, kit.train, storage_options=options) == told["before"]
    tune.Tuner.restore(url, kit.train, storage_options=options, client=pair).fit()
    assert_resumes("on_s3", found(url, kit.train, storage_options=options))


def test_what_tune_run_had_begun_finishes(pair: LocalCluster, tmp_path: Path):
    copy("classic", tmp_path)
    told = expected("classic")
    analysis = kit.run_classic(tmp_path, "run", pair, resume="AUTO")
    after = {"trials": kit.facts(analysis.trials)}
    assert kit.plain(analysis.best_config) == told["after"]["best_config"]
    assert after["trials"] == told["after"]["trials"]
    for one in analysis.trials:
        with Path(one.path, "progress.csv").open() as file:
            rows = [float(row["score"]) for row in csv.DictReader(file)]
        lines = Path(one.path, "result.json").read_text().splitlines()
        scores = [row["score"] for row in one.history]
        assert rows == scores
        assert [json.loads(line)["score"] for line in lines] == scores


@pytest.mark.parametrize("name", kit.SEARCHES)
def test_a_search_resumes_with_the_arguments_that_it_had(name: str, tmp_path: Path):
    if not same(name, "scikit-learn", "numpy", parts=2):
        pytest.skip("estimators of another version of scikit-learn are no stable ground")
    make: Callable[..., Any] = kit.SEARCHES[name][0]
    copy(name, tmp_path)
    fitted = kit.fitted(make, tmp_path, "run", resume=True)
    if is_exact(name):
        assert kit.search_facts(fitted) == expected(name)["after"]


def test_a_search_refuses_other_arguments_than_it_had(tmp_path: Path):
    copy("tune_search_killed", tmp_path)
    other = kit.tune_search(tmp_path, "run", resume=True).set_params(scheduler=None)
    with pytest.raises(ConfigError, match="scheduler must be the same"):
        other.fit(*kit.samples())


def test_an_experiment_is_read_in_the_same_way_after_its_journal_was_compressed(tmp_path: Path):
    path = copy("finished_pbt", tmp_path)
    storage = Storage(str(path))
    before, projection = found(path, kit.train), load_projection(storage)
    records = list(read_journal(storage))
    for segment in sorted((path / "journal").iterdir()):
        assert compress_file(str(segment))
        assert segment.read_bytes()[:2] == b"\x1f\x8b"
    assert list(read_journal(storage)) == records
    assert found(path, kit.train) == before
    again = load_projection(storage)
    assert again.counts == projection.counts
    assert [one.config for one in again.trials] == [one.config for one in projection.trials]
    diagnosis = diagnose_journal(storage)
    assert (diagnosis.damages, diagnosis.total) == ([], len(records))
