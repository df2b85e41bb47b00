"""Experiments that look for their past by themselves, in directories and object stores."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dasktune as tune
from dasktune.errors import ConfigError, StorageError
from dasktune.results import journal_trials
from dasktune.results.journal_trials import load_last_results, load_trials
from dasktune.results.past_lookup import read_experiment_in, with_past
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import JournalReader
from dasktune.testing import simulate
from dasktune.tuner.saved_setup import SavedSetup, setup_of

pytest.importorskip("sklearn")

SPACE = {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
GOAL: Any = {"metric": "loss", "mode": "min", "seed": 2}
SPEC = {"format": 1, "trainable": "train", "metric": "loss", "mode": "min"}


def train(config: dict[str, Any]) -> Iterator[tuple[dict[str, float], float]]:
    for epoch in range(3):
        yield {"loss": abs(config["x"] - 0.7) + (config["kind"] == "b") + 1 / (epoch + 1)}, 1.0


def run(place: str, name: str, trials: int = 30, scheduler: Any = None, **changes: Any) -> None:
    """Write the journal of an experiment, and what its driver says about it."""
    store = ExperimentStore(Storage(place).child(name))
    store.create({**SPEC, "created": "2026-01-01T00:00:00+00:00", **changes})
    config = tune.TuneConfig(num_samples=trials, scheduler=scheduler, **GOAL)
    simulate(train, param_space=SPACE, tune_config=config, slots=4, store=store)
    store.close()


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path / "past")
    else:
        name = uuid4().hex
        yield f"memory://{name}"
        Storage(f"memory://{name}").remove_tree()


@pytest.fixture
def past(tmp_path: Path) -> str:
    """A place with one experiment."""
    run(str(tmp_path / "past"), "first")
    return str(tmp_path / "past")


def search(place: Any, trials: int = 10, run_config: Any = None, **options: Any) -> tune.ResultGrid:
    """Run an experiment that looks for its past."""
    return simulate(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=trials, learn_from=place, **{**GOAL, **options}),
        run_config=run_config,
        slots=2,
    )


def found(place: Any, run_config: tune.RunConfig | None = None) -> str:
    """Return the line of an experiment that looks for its past."""
    config = tune.TuneConfig(learn_from=place, **GOAL)
    about = {"trainable": "train", "code": "experiments:train"}
    return str(with_past(config, run_config or tune.RunConfig(), SPACE, **about).learn_from.text)


def near(results: Any) -> float:
    """Return the share of trials near the best configuration; of random ones it is 0.15."""
    return float(
        np.mean([abs(one.config["x"] - 0.7) < 0.15 and one.config["kind"] == "a" for one in results])
    )


def test_the_first_experiment_is_random_and_the_next_ones_learn(place: str, caplog: Any):
    caplog.set_level(logging.INFO, "dasktune")
    first = search(place, 20)
    run(place, "march")
    run(f"{place}/churn", "april", created="2026-04-01T00:00:00+00:00")
    second = search(place, 20)
    assert near(first) <= 0.35
    assert near(second) >= 0.5
    lines = [one.getMessage() for one in caplog.records if one.name.endswith("past_lookup")]
    assert lines == [
        f"samples at random: {place} has no experiment to learn from",
        "learns from 2 experiments with 60 trials: april (30), march (30)",
    ]


def test_a_place_may_be_a_path_or_several_and_an_experiment_itself(past: str, tmp_path: Path):
    line = "learns from 1 experiment with 30 trials: first (30)"
    assert found(Path(past)) == line
    assert found([past, tmp_path, f"{past}/first"]) == line
    assert found([tmp_path / "none", f"memory://{uuid4().hex}"]).startswith("samples at random: ")


def test_experiments_that_do_not_fit_are_counted_by_reason(place: str):
    run(place, "fits", 12)
    run(place, "elsewhere", 2, trainable="test")
    run(place, "errors", 2, metric="error")
    run(place, "reversed", 2, mode="max")
    run(place, "short", 9)
    run(place, "pruned", 20, ASHAScheduler(max_t=3, reduction_factor=3, metric="loss", mode="min"))
    assert found(place) == (
        "learns from 1 experiment with 12 trials: fits (12); 5 left out: "
        "fewer than 10 full trials (2), other metric (1), other mode (1), other trainable (1)"
    )


def test_an_experiment_of_unknown_age_is_the_oldest(past: str):
    for name, created in {"naive": "2025-01-01T00:00:00", "odd": "today", "none": 7}.items():
        run(past, name, 12, created=created)
    assert found(past) == (
        "learns from 4 experiments with 66 trials: first (30), naive (12), none (12), odd (12)"
    )


def test_damaged_experiments_are_left_out_and_named_in_the_log(place: str, caplog: Any):
    for name in ("good", "no-spec", "no-dict", "no-journal", "bad-journal"):
        run(place, name, 12)
    storage = Storage(place)
    storage.write_bytes("no-spec/experiment.json", b'{"format": 1')
    storage.write_bytes("no-dict/experiment.json", b"[]")
    for name in storage.find("no-journal", "journal"):
        storage.remove(f"no-journal/journal/{name}")
    # An object store has a file for each commit, and the first one has no record.
    segments = {
        name: storage.read_bytes(f"bad-journal/journal/{name}")
        for name in storage.find("bad-journal", "journal")
    }
    longest = max(segments, key=lambda name: len(segments[name]))
    lines = segments[longest].splitlines(keepends=True)
    lines[1] = b'{"event": "Suggested", "config": {"x"\n'
    storage.write_bytes(f"bad-journal/journal/{longest}", b"".join(lines))
    caplog.set_level(logging.INFO, "dasktune.results.past_lookup")
    assert (
        found(place) == "learns from 1 experiment with 12 trials: good (12); 4 left out: cannot be read (4)"
    )
    for name in ("no-spec", "no-dict", "no-journal", "bad-journal"):
        assert f"nothing is learned from {storage.child(name)}, which cannot be read: " in caplog.text


def test_a_running_experiment_counts_with_the_trials_that_have_ended(tmp_path: Path, past: str):
    [whole] = Path(past, "first", "journal").iterdir()
    head, *records = whole.read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(records) if '"status":"TERMINATED"' in line]
    # Its driver is just writing the end of the next trial.
    torn = [*records[: ends[14]], records[ends[14]][:20]]
    shutil.copytree(Path(past, "first"), tmp_path / "now" / "live")
    shutil.rmtree(tmp_path / "now" / "live" / "snapshots", ignore_errors=True)
    (tmp_path / "now" / "live" / "journal" / whole.name).write_text("".join([head, *torn]))
    assert found(tmp_path / "now") == "learns from 1 experiment with 14 trials: live (14)"


class Locked(MemoryFileSystem):  # type: ignore[misc]
    """A store that opens for a token only."""

    protocol = "locked"

    def __init__(self, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        if token != "open-sesame":
            raise PermissionError("no access without a token")


def test_a_long_journal_takes_memory_for_the_last_results_only(place: str, monkeypatch: Any):
    trials, epochs, length = 20, 100, 1_000
    rng = np.random.default_rng(0)

    def chatter(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
        for _ in range(epochs):
            # No block of results can pack it.
            yield {"loss": config["x"], "note": rng.bytes(length // 2).hex()}, 1.0

    small = partial(JournalReader, batch_bytes=256 * 1024)
    monkeypatch.setattr(journal_trials, "JournalReader", small)
    # On a disk the journal is one segment of 2 MB, which is read at once.
    share = 0.2 if place.startswith("memory:") else 1.2
    storage = Storage(place).child("long")
    store = ExperimentStore(storage)
    store.create(SPEC)
    config = tune.TuneConfig(num_samples=trials, **GOAL)
    simulate(chatter, param_space=SPACE, tune_config=config, slots=4, store=store)
    store.close()
    storage.remove_tree("snapshots")
    tracemalloc.start()
    try:
        earlier = read_experiment_in(storage)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < share * trials * epochs * length + 500_000
    whole = load_trials(storage)
    assert [one.history for one in earlier.trials] == [one.history[-1:] for one in whole]
    assert [one.config for one in earlier.trials] == [one.config for one in whole]
    assert [len(one.history) for one in whole] == [epochs] * trials


def test_clones_have_the_same_last_results(tmp_path: Path):
    storage = Storage(str(tmp_path)).child("cloned")
    store = ExperimentStore(storage)
    store.create(SPEC)
    scheduler = PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}, quantile_fraction=0.5
    )
    config = tune.TuneConfig(num_samples=4, scheduler=scheduler, **GOAL)

    def steps(config: dict[str, Any], checkpoint: int | None) -> Iterator[tuple[Any, float, int]]:
        for epoch in range(checkpoint or 0, 6):
            yield {"loss": config["x"] / (epoch + 1)}, 1.0, epoch + 1

    simulate(steps, param_space=SPACE, tune_config=config, slots=4, store=store)
    store.close()
    storage.remove_tree("snapshots")
    whole = load_trials(storage)
    assert any(one.cloned_in for one in whole)
    assert [one.history for one in load_last_results(storage)] == [one.history[-1:] for one in whole]


def test_storage_options_apply_to_places_of_the_same_protocol(past: str):
    fsspec.register_implementation("locked", Locked, clobber=True)
    options = {"token": "open-sesame"}
    remote = tune.RunConfig(storage_path="locked://results", storage_options=options)
    assert "first (30)" in found([past, f"locked://{uuid4().hex}"], remote)
    with pytest.raises(StorageError, match="no access without a token"):
        found("locked://past", tune.RunConfig(storage_path=past, storage_options=None))


def test_a_place_that_cannot_be_listed_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot read .*file"):
        found(tmp_path / "file")
    with pytest.raises(StorageError, match="Protocol not known: nowhere"):
        found("nowhere://bucket")
    with pytest.raises(
        ConfigError, match=r"learn_from must be a URL without '\.\.', got 's3://\*\*\*@a/\.\./b'"
    ):
        found("s3://me:hunter2@a/../b")


def test_a_search_that_could_not_learn_is_refused_although_nothing_is_found(tmp_path: Path, monkeypatch: Any):
    def refused(message: str, space: Any = SPACE, trainable: Any = train) -> None:
        with pytest.raises(ConfigError, match=message):
            simulate(
                trainable,
                param_space=space,
                tune_config=tune.TuneConfig(learn_from=tmp_path, **GOAL),
            )

    refused("param_space must be without grid_search", {"x": tune.grid_search([1, 2])})

    def nameless(config: dict[str, Any]) -> Any:
        yield from train(config)

    nameless.__name__ = "<lambda>"
    refused("trainable must be a function with a name for learn_from", trainable=nameless)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    refused("pip install scikit-learn")


def interrupted(place: Path, past: Any, trials: int) -> tune.ResultGrid:
    """Write an experiment that learned from its past, as its driver leaves it."""
    run_config = tune.RunConfig()
    config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=1, learn_from=past, **GOAL)
    config = with_past(config, run_config, SPACE, trainable="train", code=None)
    setup = setup_of(config, run_config, SPACE)
    store = ExperimentStore(Storage(str(place)))
    store.create(SPEC)
    results = simulate(train, param_space=SPACE, tune_config=config, run_config=run_config, store=store)
    store.close()
    setup.write(store.storage)
    return results


def test_a_restored_experiment_has_its_past_when_the_places_are_gone(tmp_path: Path, past: str):
    results = interrupted(tmp_path / "run", past, 6)
    setup = TunerFile.read(Storage(str(tmp_path / "run")))
    build = lambda: SavedSetup(setup, None, None, None).build().search  # noqa: E731
    suggestions = [build().next_trial("t0").config]
    shutil.rmtree(past)
    suggestions.append(build().next_trial("t0").config)
    assert suggestions == [results[0].config] * 2
    more = tune.TuneConfig(num_samples=8, max_concurrent_trials=1, learn_from=past, **GOAL)
    restored = tune.Tuner.restore(tmp_path / "run", train, tune_config=more)
    assert [one.config for one in restored.get_results()] == [one.config for one in results]


@pytest.mark.parametrize("other", [None, "elsewhere"])
def test_an_experiment_cannot_be_restored_with_another_past(tmp_path: Path, past: str, other: Any):
    interrupted(tmp_path / "run", past, 2)
    with pytest.raises(
        ConfigError, match=rf"learn_from must be \['{past}'\] as at the start, got {other and '.'}"
    ):
        tune.Tuner.restore(
            tmp_path / "run", train, tune_config=tune.TuneConfig(num_samples=8, learn_from=other, **GOAL)
        )


def test_a_random_search_cannot_be_restored_with_a_past(tmp_path: Path, past: str):
    interrupted(tmp_path / "run", None, 2)
    with pytest.raises(ConfigError, match=rf"learn_from must be None as at the start, got \['{past}'\]"):
        tune.Tuner.restore(tmp_path / "run", train, tune_config=tune.TuneConfig(learn_from=past, **GOAL))


def test_a_resumed_experiment_does_not_read_the_places(tmp_path: Path, past: str, caplog: Any):
    interrupted(tmp_path / "run", past, 2)
    shutil.rmtree(past)
    Path(past).touch()  # what would be an error
    caplog.set_level(logging.INFO, "dasktune.results.past_lookup")

    def tuner(**options: Any) -> tune.Tuner:
        return tune.Tuner(
            train,
            param_space=SPACE,
            tune_config=tune.TuneConfig(learn_from=past, **GOAL),
            run_config=tune.RunConfig(storage_path=tmp_path, name="run", **options),
            client=3.14,  # no cluster: whatever runs trials fails
        )

    with pytest.raises(StorageError, match="cannot read"):
        tuner()
    resumed, begun = (tuner(if_exists="resume") for _ in range(2))
    with pytest.raises(ConfigError, match="client"):
        resumed.fit()
    assert caplog.text == ""
    # The experiment is deleted in the meantime, so another one begins, and looks for its past.
    shutil.rmtree(tmp_path / "run")
    Path(past).unlink()
    run(past, "first")
    with pytest.raises(ConfigError, match="client"):
        begun.fit()
    assert "learns from 1 experiment with 30 trials" in caplog.text


class WithUsers(MemoryFileSystem):
    """A store whose URLs have a user and a password."""

    protocol = "users"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.rpartition("@")[2])


def test_passwords_of_places_are_neither_stored_nor_shown(caplog: Any):
    caplog.set_level(logging.DEBUG)
    fsspec.register_implementation("users", WithUsers, clobber=True)
    host = uuid4().hex
    run(f"memory://{host}-a", "first")
    run(f"memory://{host}-b", "first")
    # The experiment is the place itself, so the end of the URL is the host.
    store = ExperimentStore(Storage(f"memory://{host}-c"))
    store.create({**SPEC, "created": "2026-02-01T00:00:00+00:00"})
    config = tune.TuneConfig(num_samples=30, **GOAL)
    simulate(train, param_space=SPACE, tune_config=config, slots=4, store=store)
    store.close()
    places = [f"users://me:hunter2@{host}-{one}" for one in "abc"]
    config = tune.TuneConfig(learn_from=places, **GOAL)
    assert "hunter2" not in repr(config)
    config = with_past(config, tune.RunConfig(), SPACE, trainable="train", code=None)
    entries = setup_of(config, tune.RunConfig(), SPACE).entries
    names = f"***@{host}-c (30), first (30), users://***@{host}-b/first (30)"
    assert entries["tune_config.learn_from"]["text"] == f"learns from 3 experiments with 90 trials: {names}"
    stored = [base64.b64decode(entry["pickle"]) for entry in entries.values() if "pickle" in entry]
    assert not any(b"hunter2" in one for one in [json.dumps(entries).encode(), *stored])
    assert "hunter2" not in caplog.text


def test_what_was_read_is_not_read_again(past: str):
    config = tune.TuneConfig(learn_from=past, **GOAL)
    once = with_past(config, tune.RunConfig(), SPACE, trainable="train", code=None)
    shutil.rmtree(past)
    assert with_past(once, tune.RunConfig(), SPACE, trainable="train", code=None) is once
