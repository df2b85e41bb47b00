"""What the directory of an experiment tells is what its driver knew."""

from __future__ import annotations

from typing import Any

import pytest
from test_replay import LOSE, Recorder, configs, curve, fresh

from dasktune.errors import StorageError
from dasktune.experiment.trial_state import trial_from_state
from dasktune.results.journal_trials import apply_records
from dasktune.runner.replay import replay
from dasktune.storage.journal.json_lines import decode, encode
from dasktune.testing import simulate
from dasktune.trial.resources import PlacementGroupFactory
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.usefixtures("quick_bandit")

CASES = [
    ("fifo", "variants"),
    ("hyperband", "limited"),
    ("resizing", "variants"),
    ("pbt", "variants"),
    ("synch-pbt", "limited"),
]


def facts(trial: Trial, *, lent: bool = False) -> dict[str, Any]:
    """Return what a user sees of a trial."""
    records = [*trial.checkpoints, *(trial.lent if lent else ())]
    return {
        "config": encode(trial.config),
        "history": repr(trial.history),
        "checkpoints": sorted(one.path for one in records if one.kind.value == "persistent"),
        "status": trial.status,
        "reasons": (trial.reason, trial.pause_reason, trial.stopped_early),
        "errors": [(error.message, error.traceback) for error in trial.errors],
        "times": (trial.started_at, trial.ended_at),
        "tag": trial.tag,
        "worker": trial.worker,
        "failures": trial.failures,
        "losses": (trial.losses, trial.worker_losses, trial.shared_losses, trial.progress_at_loss),
        "resources": (trial.resources, trial.first_resources),
    }


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def lived(request: pytest.FixtureRequest, quick_bandit: None) -> tuple[Any, Recorder]:
    store = Recorder()
    simulate(curve, **configs(*request.param), workers=[2, 2], start_overhead=1.5, lose=LOSE, store=store)
    return request.param, store


def test_the_trials_stand_at_each_record_where_they_stood(lived):
    case, store = lived
    live, trials = fresh(*case), {}
    for number, record in enumerate(store.records):
        replay(live, [record], lambda trial_id: {})
        apply_records(trials, [record])
        if number % 20 and number < len(store.records) - 1:
            continue
        told = {key: facts(trial) for key, trial in trials.items()}
        # Checkpoints that others still resume from are listed until they are deleted.
        assert told == {key: facts(trial, lent=True) for key, trial in live.trials.items()}


def test_a_snapshot_is_as_good_as_what_led_to_it(lived):
    _, store = lived
    assert store.snapshots
    whole: dict[str, Trial] = {}
    apply_records(whole, store.records)
    for position, snapshot in store.snapshots.items():
        state = decode(snapshot)["trials"]
        trials = {one["trial_id"]: trial_from_state(one) for one in state}
        apply_records(trials, store.records[position:])
        assert {k: t.history for k, t in trials.items()} == {k: t.history for k, t in whole.items()}
        assert [t.status for t in trials.values()] == [t.status for t in whole.values()]


@pytest.mark.parametrize(
    "record",
    [
        {"event": "Suggested", "trial_id": "a", "config": {}, "resources": 3},
        {"event": "TimePassed", "time": 1.0, "actions": [{"do": "StopTrial", "trial_id": "b"}]},
        {"no": "event"},
    ],
)
def test_a_malformed_record_is_reported(record):
    with pytest.raises(StorageError, match="malformed record"):
        apply_records({}, [record])


def test_events_and_actions_of_a_newer_version_are_skipped():
    trials = {}
    newer = {"event": "Suggested", "trial_id": "a", "config": {}, "time": 1.0, "colour": "red"}
    newer["resources"] = PlacementGroupFactory([{"CPU": 1}]).to_json()
    dance = {"event": "TimePassed", "time": 1.0, "actions": [{"do": "Dance", "trial_id": "a"}]}
    apply_records(trials, [{"event": "Imagined", "trial_id": "a"}, newer, dance])
    assert list(trials) == ["a"]
