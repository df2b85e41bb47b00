"""Whole experiments with population based training, in virtual time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_restored_experiments import Died, Lab, once_each

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.experiment import ExperimentMachine
from dasktune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay
from dasktune.search import Searcher
from dasktune.space import choice, uniform
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate
from dasktune.trial.status import PublicStatus

# Experiments that exploit a lot


def climb(config: dict[str, Any], checkpoint: Any) -> Any:
    """Comes higher by its rate at each step; the trial of rate 0.35 breaks once it has begun."""
    height, step = checkpoint or (0.0, 0)
    while step < 20:
        height, step = height + config["rate"], step + 1
        if config["rate"] == config.get("breaks"):
            raise ValueError("broken")
        yield {"height": height}, 10.0 + config["rate"], (height, step)


def pbt(**changes: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        **{
            "time_attr": "training_iteration",
            "perturbation_interval": 4,
            "hyperparam_mutations": {"rate": uniform(0, 1)},
            "quantile_fraction": 0.3,
            **changes,
        }
    )


def run(
    scheduler: Any,
    *,
    rates: tuple[float, ...] = (0.1, 0.2, 0.35, 0.5, 0.7, 0.9),
    trainable: Any = climb,
    run_config: RunConfig | None = None,
    space: dict[str, Any] | None = None,
    naming: dict[str, Any] | None = None,
    **simulation: Any,
) -> tuple[Any, list[dict[str, Any]], MemoryStore]:
    store = simulation.setdefault("store", MemoryStore())
    results = simulate(
        trainable,
        param_space={"rate": {"grid_search": list(rates)}, **(space or {})},
        tune_config=TuneConfig(metric="height", mode="max", seed=7, scheduler=scheduler, **(naming or {})),
        run_config=run_config or RunConfig(),
        **simulation,
    )
    return results, [decode(line) for line in store.journal.splitlines()], store


def exploits(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    actions = (action for record in records for action in record.get("actions", ()))
    return [action for action in actions if action["do"] == "ExploitTrial"]


@pytest.mark.parametrize("slots", [1, 2, 6])
@pytest.mark.parametrize("synch", [False, True])
def test_bad_trials_become_clones_of_good_ones(synch: bool, slots: int):
    results, records, store = run(pbt(synch=synch), slots=slots)
    done = exploits(records)
    assert len(done) > 3
    assert all(result.status is PublicStatus.TERMINATED for result in results)
    assert all(one["checkpoint"]["iteration"] == one["donor_iteration"] for one in done)
    # The worst would have come to 2 by itself.
    assert min(result.metrics["height"] for result in results) > 6
    assert store.policies == [
        [
            one["trial_id"],
            one["donor"],
            one["iteration"],
            one["checkpoint"]["iteration"],
            one["old_config"],
            one["config"],
        ]
        for one in done
    ]


@pytest.mark.parametrize("synch", [False, True])
def test_clones_are_made_alike_whatever_directories_are_called(synch: bool):
    """What is copied is found in the donor's directory, and kept until it is not needed."""
    plain, told, _ = run(pbt(synch=synch), slots=2)
    named, records, _ = run(
        pbt(synch=synch),
        slots=2,
        naming={
            "trial_name_creator": lambda trial: f"rate {trial.config['rate']}",
            # All but the first get a number behind it.
            "trial_dirname_creator": lambda trial: "Rate",
        },
    )
    folders = [result.path.rpartition("/")[2] for result in named]
    assert folders == ["Rate", *(f"Rate_{number}" for number in range(1, 6))]
    done = exploits(records)
    assert len(done) > 3
    folder_of = {one.trial_id: folder for one, folder in zip(named, folders, strict=True)}
    for one in done:
        assert one["checkpoint"]["path"].split("/")[1] == folder_of[one["donor"]]
    assert [one.history for one in named] == [
        [{**row, "trial_id": twin.trial_id} if "trial_id" in row else row for row in one.history]
        for one, twin in zip(plain, named, strict=True)
    ]
    assert len(done) == len(exploits(told))


def test_trials_of_one_speed_are_not_paused_for_each_other():
    _, records, _ = run(pbt(), slots=6)
    pauses = [
        action for record in records for action in record.get("actions", ()) if action["do"] == "PauseTrial"
    ]
    assert len(pauses) == len(exploits(records))


def test_mutations_stay_in_their_domain_and_among_their_choices():
    mutations = {"rate": uniform(0.05, 0.95), "kind": choice(["a", "b", "c"]), "size": [1, 2, 4]}
    scheduler = pbt(hyperparam_mutations=mutations, perturbation_factors=(3.0, 0.2))
    _, records, _ = run(scheduler, space={"kind": "a", "size": 1}, slots=3)
    configs = [one["config"] for one in exploits(records)]
    assert configs
    assert all(0.05 <= config["rate"] <= 0.95 for config in configs)
    assert {config["kind"] for config in configs} <= {"a", "b", "c"}
    assert {config["size"] for config in configs} <= {1, 2, 4}


def test_the_checkpoint_to_be_exploited_outlives_the_smallest_retention():
    config = RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1))
    _, records, store = run(pbt(), run_config=config, slots=6)
    done = exploits(records)
    assert done
    assert all(one["checkpoint"]["iteration"] == one["donor_iteration"] for one in done)
    # Nothing that was deleted is ever restored.
    gone: set[str] = set()
    for record in records:
        for action in record.get("actions", ()):
            if action["do"] == "DeleteCheckpoint":
                gone.add(action["checkpoint"]["path"])
            if action["do"] == "RestoreTrial":
                assert action["checkpoint"]["path"] not in gone
    assert len(store.deleted) > 50


def test_a_population_that_waits_for_each_other_does_not_wait_for_one_that_failed():
    results, records, _ = run(pbt(synch=True), space={"breaks": 0.35}, slots=3)
    failed, *others = sorted(results, key=lambda result: str(result.status))
    assert failed.status is PublicStatus.ERROR
    # To its end: none was ended because it was never chosen again.
    assert all(result.metrics["training_iteration"] == 20 for result in others)
    assert {result.reason for result in others} == {""}
    assert exploits(records)


@pytest.mark.parametrize("synch", [False, True])
def test_one_that_fails_and_is_tried_again_is_waited_for(synch: bool):
    failures = iter([True, True])

    def breaks_at_first(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in climb(config, checkpoint):
            if config["rate"] == 0.35 and step[2][1] == 4 and next(failures, False):
                raise ValueError("broken")
            yield step

    results, _, _ = run(
        pbt(synch=synch),
        trainable=breaks_at_first,
        run_config=RunConfig(failure_config=FailureConfig(max_failures=2)),
        slots=3,
    )
    assert list(failures) == []
    assert all(result.status is PublicStatus.TERMINATED for result in results)


@pytest.mark.parametrize("synch", [False, True])
def test_a_score_that_is_no_number_is_replaced(synch: bool):
    def diverges(config: dict[str, Any], checkpoint: Any) -> Any:
        for metrics, seconds, state in climb(config, checkpoint):
            height = float("nan") if config["rate"] > 0.8 else metrics["height"]
            yield {"height": height}, seconds, state

    scheduler = pbt(synch=synch, quantile_fraction=0.1, hyperparam_mutations={"rate": [0.3, 0.4]})
    results, records, _ = run(scheduler, trainable=diverges, slots=6)
    assert {one["old_config"]["rate"] for one in exploits(records)} <= {0.3, 0.4, 0.5, 0.7}
    assert all(result.metrics["height"] > 0 for result in results)


def test_a_population_without_checkpoints_stays_as_it_is(caplog: pytest.LogCaptureFixture):
    def forgetful(config: dict[str, Any]) -> Any:
        for step in range(1, 13):
            yield {"height": step * config["rate"]}, 10.0

    caplog.set_level("INFO")
    results, records, _ = run(pbt(), trainable=forgetful, slots=6)
    assert not exploits(records)
    assert "which has no checkpoint of iteration" in caplog.text
    assert all(len(result.history) == 12 for result in results)


@pytest.mark.parametrize("synch", [False, True])
def test_exploits_survive_the_loss_of_workers_and_of_what_is_in_memory(synch: bool):
    losses = {30.0 + 11 * number: number % 6 for number in range(25)}
    results, records, _ = run(
        pbt(synch=synch),
        slots=3,
        lose=losses,
        saves_on_demand=True,
        run_config=RunConfig(failure_config=FailureConfig(max_worker_losses=50)),
    )
    assert exploits(records)
    events = {record["event"] for record in records}
    assert {"TrialLost", "CheckpointLost"} <= events
    assert all(result.status is PublicStatus.TERMINATED for result in results)


def test_trials_that_save_on_demand_are_cloned_from_memory():
    _, records, _ = run(pbt(synch=True), slots=6, saves_on_demand=True)
    done = exploits(records)
    assert done
    assert {one["checkpoint"]["kind"] for one in done} == {"memory"}
    assert all(one["checkpoint"]["iteration"] == one["donor_iteration"] for one in done)


@pytest.mark.parametrize("patience", [0, 2])
def test_a_clone_that_cannot_load_its_donors_checkpoint_has_failed_and_is_tried_again(
    patience: int,
):
    left = iter([True, True])

    def picky(config: dict[str, Any], checkpoint: Any) -> Any:
        if checkpoint is not None and next(left, False):
            raise KeyError("no such weight")
        yield from climb(config, checkpoint)

    config = RunConfig(failure_config=FailureConfig(max_failures=patience))
    results, records, _ = run(pbt(), trainable=picky, run_config=config, slots=6)
    failed = [result for result in results if result.status is PublicStatus.ERROR]
    assert len(failed) == (0 if patience else 2)
    assert all("no such weight" in str(result.error) for result in failed)
    again = [one["checkpoint"]["path"] for one in restores(records)]
    # A trial that is tried again resumes from the same checkpoint.
    assert len(again) > len(set(again)) or not patience


def restores(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    actions = (action for record in records for action in record.get("actions", ()))
    return [action for action in actions if action["do"] == "RestoreTrial"]


def test_exploiting_while_the_donor_saves_takes_what_there_is(caplog: pytest.LogCaptureFixture):
    # All report at the same time, the best first, so that each donor is saving when its clone is
    # made: for the first time it has nothing yet, and no clone waits for it.
    caplog.set_level("INFO")

    def in_step(config: dict[str, Any], checkpoint: Any) -> Any:
        for metrics, _, state in climb(config, checkpoint):
            yield metrics, 10.0, state

    rates = (0.9, 0.7, 0.5, 0.35, 0.2, 0.1)
    results, records, _ = run(pbt(), rates=rates, trainable=in_step, slots=6, saves_on_demand=True)
    assert "which has no checkpoint of iteration 4 or before" in caplog.text
    assert all(result.metrics["training_iteration"] == 20 for result in results)
    assert exploits(records)
    assert all(one["checkpoint"]["iteration"] <= one["donor_iteration"] for one in exploits(records))


def test_what_a_configuration_lacks_is_drawn_and_written_down():
    results, records, store = run(pbt(hyperparam_mutations={"slope": uniform(2, 3)}), slots=2)
    assert all(2 <= result.config["slope"] <= 3 for result in results)
    assert all(len(row) == 6 for row in store.policies)
    assert len(exploits(records)) == len(store.policies) + 6


class Pupil(Searcher):
    """Records the results and the ends of the trials that it has suggested."""

    def __init__(self) -> None:
        super().__init__()
        self.suggested: dict[str, float] = {}
        self.heights: dict[str, list[float]] = {}
        self.ends: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.suggested[trial_id] = 0.1 + 0.2 * (len(self.suggested) % 5)
        return {"rate": self.suggested[trial_id]}

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.heights.setdefault(trial_id, []).append(result["height"] / self.suggested[trial_id])

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.ends[trial_id] = result


@pytest.mark.parametrize("synch", [False, True])
def test_a_searcher_never_takes_what_a_clone_reached_for_what_it_has_suggested(synch: bool):
    pupil, store = Pupil(), MemoryStore()
    simulate(
        climb,
        tune_config=TuneConfig(
            metric="height",
            mode="max",
            num_samples=8,
            seed=7,
            search_alg=pupil,
            scheduler=pbt(synch=synch),
        ),
        slots=4,
        store=store,
    )
    clones = {row[0] for row in store.policies}
    assert clones
    assert set(pupil.ends) == set(pupil.suggested)
    assert clones == {key for key, result in pupil.ends.items() if result is None}
    # All that it gets of a trial is the height after so many steps of what it has suggested.
    assert set(pupil.heights) == set(pupil.suggested)
    for heights in pupil.heights.values():
        assert heights == pytest.approx(range(1, len(heights) + 1))


# Drivers that die


def population_lab(name: str, *, synch: bool) -> Lab:
    storage = Storage(f"memory://population/{name}")
    storage.remove_tree()
    parts = {
        "tune_config": TuneConfig(metric="height", mode="max", seed=7, scheduler=pbt(synch=synch)),
        "run_config": RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1)),
        "param_space": {"rate": {"grid_search": [0.1, 0.35, 0.5, 0.9]}},
    }
    return Lab(storage, climb, **parts)


def policies_of(place: Lab) -> list[list[Any]]:
    text = place.storage.read_bytes("pbt_global.txt").decode()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("synch", [False, True])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=st.lists(st.integers(0, 90), max_size=4))
def test_however_often_its_driver_dies_a_population_finishes(synch: bool, lives: list[int]):
    place = population_lab("stormy", synch=synch)
    experiment = driven(place, lives)
    once_each(experiment)
    rows = experiment.exploits.rows
    assert rows
    # Nothing is lost, and nothing stands there twice.
    assert policies_of(place) == rows
    for key, trial in experiment.trials.items():
        params = json.loads(place.storage.read_bytes(f"trials/{key}/params.json"))
        assert params == trial.config
        if trial.ancestry:
            text = place.storage.read_bytes(f"pbt_policy_{key}.txt").decode()
            own = [json.loads(line) for line in text.splitlines()]
            assert own == [rows[number] for number in trial.ancestry]
            assert own[-1][0] == key
            assert own[-1][5] == trial.config


def driven(place: Lab, lives: list[int]) -> ExperimentMachine:
    begun = False
    for limit in lives:
        try:
            return place.resume(limit) if begun else place.begin(limit)
        except Died:
            begun = True
    return place.resume() if begun else place.begin()


@pytest.mark.parametrize("limit", range(20, 90, 7))
def test_a_population_that_waits_for_each_other_resumes_after_its_driver_died(limit: int):
    place = population_lab(f"waiting-{limit}", synch=True)
    with pytest.raises(Died):
        place.begin(limit)
    experiment = place.resume()
    assert all(trial.status.is_final for trial in experiment.trials.values())


# The schedule of one trial, again


def test_a_schedule_that_was_found_can_be_replayed(tmp_path: Path):
    place = population_lab("found", synch=False)
    experiment = place.begin()
    key, trial = max(experiment.trials.items(), key=lambda item: len(item[1].ancestry))
    file = tmp_path / "policy.txt"
    file.write_bytes(place.storage.read_bytes(f"pbt_policy_{key}.txt"))
    scheduler = PopulationBasedTrainingReplay(file)
    results, records, _ = run(scheduler, rates=(0.0,))
    [result] = results
    assert result.config == trial.config
    assert len(result.history) == 20
    height = 0.0
    changes = [(0, scheduler.config), *scheduler.changes, (20, {})]
    for (begin, config), (end, _) in pairwise(changes):
        height += (end - begin) * config["rate"]
    assert result.metrics["height"] == pytest.approx(height)
    assert result.metrics["height"] == pytest.approx(trial.last_result["height"])
    assert len(exploits(records)) == len(scheduler.changes) + 1
