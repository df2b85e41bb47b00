"""The checker of histories finds each kind of violation, and none in a sound history."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from checker import (
    check_contents,
    check_files,
    check_iterations,
    check_journal,
    check_replay,
    check_rows,
)

from dasktune.config import RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.runner.build import build_experiment
from dasktune.space import grid_search
from dasktune.storage.checkpoints.checkpoint import dict_files
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

PARTS: dict[str, Any] = {
    "tune_config": TuneConfig(metric="loss", mode="min", seed=0),
    "run_config": RunConfig(),
    "param_space": {"x": grid_search([1, 2])},
}


def curve(config: dict[str, Any], checkpoint: Any) -> Any:
    for step in range(checkpoint or 0, 4):
        yield {"loss": config["x"] / (step + 1)}, 1.0, step + 1


def losses(x: int) -> list[dict[str, float]]:
    return [{"loss": x / step} for step in (1, 2, 3, 4)]


def kinds(violations: Any) -> list[str]:
    return [one.kind for one in violations]


@pytest.fixture(scope="module")
def lived() -> list[dict[str, Any]]:
    """The journal of two trials, one of which loses its worker."""
    store = MemoryStore()
    simulate(curve, **PARTS, slots=2, lose={2.5: 0}, store=store)
    return [decode(line) for line in store.journal.splitlines()]


@pytest.fixture
def records(lived: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return deepcopy(lived)


def fresh() -> ExperimentMachine:
    return build_experiment(*PARTS.values())


def loss(metrics: Any) -> Any:
    return metrics["loss"]


def reports(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in records if one["event"] == "ResultReported"]


@pytest.mark.parametrize("found", [[1, 2, 2], [1, 3], [2, 3], [2, 1], [1, None]])
def test_each_iteration_must_be_there_once(found: list[Any]):
    assert kinds(check_iterations("a", [{"training_iteration": n} for n in found])) == ["iterations"]
    assert kinds(check_iterations("a", [{"training_iteration": n} for n in (1, 2, 3)])) == []


def test_rows_must_be_those_of_an_undisturbed_run():
    rows = [{**row, "pid": 7} for row in losses(1)]
    assert kinds(check_rows("a", rows, losses(1))) == []
    assert kinds(check_rows("a", rows[:3], losses(1))) == ["rows"]
    assert kinds(check_rows("a", rows[:3], losses(1), complete=False)) == []
    assert kinds(check_rows("a", [*rows, rows[0]], losses(1), complete=False)) == ["rows"]
    rows[2]["loss"] = 9.0
    assert kinds(check_rows("a", rows, losses(1))) == ["rows"]


def test_a_sound_journal_has_no_violation(records: list[dict[str, Any]]):
    assert any(one["event"] == "TrialLost" for one in records)
    assert kinds(check_journal(records, loss)) == []
    assert kinds(check_replay(records, fresh())) == []


def test_a_trial_must_not_resume_behind_its_newest_checkpoint(records: list[dict[str, Any]]):
    actions = [action for one in records for action in one.get("actions", ())]
    [resumed] = [one for one in actions if one["do"] == "RestoreTrial"]
    resumed["checkpoint"]["iteration"] -= 1
    assert kinds(check_journal(records, loss)) == ["step back"]


def test_a_trial_must_not_begin_again_if_it_has_a_checkpoint(records: list[dict[str, Any]]):
    actions = [action for one in records for action in one.get("actions", ())]
    [resumed] = [one for one in actions if one["do"] == "RestoreTrial"]
    resumed["do"] = "StartTrial"
    assert kinds(check_journal(records, loss)) == ["step back"]


def damaged(trial_id: str, incarnation: int, path: str) -> dict[str, Any]:
    """Return the record of a start that finds its checkpoint damaged."""
    return {"event": "RestoreFailed", "trial_id": trial_id, "incarnation": incarnation, "path": path}


def test_a_trial_may_resume_from_an_older_checkpoint_if_the_newest_is_damaged() -> None:
    def saved(number: int) -> dict[str, Any]:
        return {"path": f"c{number}", "iteration": number}

    def resumed(incarnation: int, number: int) -> dict[str, Any]:
        which = {"trial_id": "a", "incarnation": incarnation}
        return {"do": "RestoreTrial", **which, "checkpoint": saved(number)}

    start = {
        "event": "ResourcesGranted",
        "actions": [{"do": "StartTrial", "trial_id": "a", "incarnation": 1}],
    }
    report = {"event": "CheckpointCommitted", "trial_id": "a", "incarnation": 1}
    deletion = {"do": "DeleteCheckpoint", "trial_id": "a", "checkpoint": saved(1)}
    history: list[dict[str, Any]] = [
        start,
        *({**report, "checkpoint": saved(number)} for number in (1, 2, 3)),
        {"event": "TimePassed", "actions": [deletion, resumed(2, 3)]},
        damaged("a", 2, "c3"),
        {"event": "TimePassed", "actions": [resumed(3, 2)]},
        # A late one of an earlier start changes nothing.
        {**report, "checkpoint": saved(4)},
        damaged("a", 2, "c2"),
    ]
    assert kinds(check_journal([*history, {"event": "TimePassed", "actions": [resumed(4, 2)]}], loss)) == []
    begun = {"do": "StartTrial", "trial_id": "a", "incarnation": 4}
    for wrong in (resumed(4, 1), resumed(4, 3), begun):
        last = {"event": "TimePassed", "actions": [wrong]}
        assert kinds(check_journal([*history, last], loss)) == ["step back"]
    last = {**damaged("a", 3, "c2"), "actions": [begun]}
    assert kinds(check_journal([*history, last], loss)) == []


def test_a_result_that_is_computed_twice_must_be_the_same(records: list[dict[str, Any]]):
    again = deepcopy(reports(records)[-1])
    assert kinds(check_journal([*records, again], loss)) == []
    again["metrics"]["loss"] += 1
    assert kinds(check_journal([*records, again], loss)) == ["repeated result"]


def test_a_checkpoint_must_be_of_the_iteration_of_its_result(records: list[dict[str, Any]]):
    last = [one for one in reports(records) if one["checkpoint"]][-1]
    last["checkpoint"]["iteration"] += 1
    assert kinds(check_journal(records, loss)) == ["checkpoint"]


def test_a_trial_must_end_once(records: list[dict[str, Any]]):
    end = next(one for one in records if one["event"] == "TrialEnded")
    assert kinds(check_journal([*records, end], loss)) == ["second end"]


@pytest.mark.parametrize("change", ["missing action", "other trial", "other config", "missing record"])
def test_a_replay_must_lead_to_the_recorded_actions(records: list[dict[str, Any]], change: str):
    started = next(one for one in records if one.get("actions"))
    if change == "missing action":
        started["actions"].pop()
    elif change == "other trial":
        started["actions"][0]["trial_id"] += "x"
    elif change == "other config":
        next(one for one in records if one["event"] == "Suggested")["config"] = {"x": 3}
    else:
        records.remove(started)
    try:
        found = kinds(check_replay(records, fresh()))
    except Exception:
        # The state machine refuses an event that its journal cannot have.
        assert change == "missing record"
    else:
        assert found == ["replay"]


@pytest.fixture
def stored() -> tuple[Storage, Trial]:
    """A trial with one checkpoint, and the other files of an experiment."""
    storage = Storage("memory://checked")
    trial = Trial(trial_id="a", config={}, resources=PlacementGroupFactory([{"CPU": 1}]))
    record = CheckpointStore(storage).commit(
        dict_files({"step": 3}), trial_dir="a", index=0, incarnation=1, iteration=3, metrics={}
    )
    trial.checkpoints.append(record)
    for name in (
        "experiment.json",
        "tuner.json",
        "journal/000001-000000.jsonl",
        "snapshots/000001-000000007.jsonl",
        "driver/000001.json",
        "trials/a/params.json",
        "trials/a/.incarnation",
        "trials/a/.incarnation-200001",
    ):
        storage.write_bytes(name, b"{}")
    return storage, trial


def step(content: Any) -> int:
    return int(content["step"])


def test_sound_files_have_no_violation(stored: tuple[Storage, Trial]):
    storage, trial = stored
    assert list(check_files(storage, [trial])) == []
    assert list(check_contents(storage, [trial], step)) == []


@pytest.mark.parametrize(
    "name",
    [
        ".preflight-00ff",
        ".preflight-00ff-reply",
        ".probe-00ff",
        ".tmp-00ff",
        "driver/.tmp-00ff",
        "trials/a/.tmp-00ff",
        "trials/a/checkpoint_000001_i01/data",
        "trials/a/checkpoint_000000_i02/.manifest.json",
        "trials/a/checkpoint_000000_i01/.tmp-00ff",
        "else",
    ],
)
def test_a_stray_file_is_found(stored: tuple[Storage, Trial], name: str):
    storage, trial = stored
    storage.write_bytes(name, b"")
    assert [(one.kind, one.where) for one in check_files(storage, [trial])] == [("stray file", name)]


def test_a_checkpoint_that_is_referred_to_must_be_there_whole(stored: tuple[Storage, Trial]):
    storage, trial = stored
    [record] = trial.checkpoints
    [data] = [name for name in storage.find(record.path) if not name.startswith(".")]
    storage.write_bytes(f"{record.path}/{data}", b"")
    assert kinds(check_files(storage, [trial])) == ["damaged checkpoint"]
    storage.remove_tree(record.path)
    assert kinds(check_files(storage, [trial])) == ["missing checkpoint"]


def test_a_checkpoint_must_hold_the_iteration_that_its_record_names(stored: tuple[Storage, Trial]):
    storage, trial = stored
    [record] = trial.checkpoints
    trial.checkpoints[:] = [type(record)(path=record.path, index=0, iteration=4)]
    assert kinds(check_files(storage, [trial])) == ["checkpoint"]
    assert kinds(check_contents(storage, [trial], step)) == ["checkpoint"]
