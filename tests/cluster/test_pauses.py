"""Trials that are paused with their checkpoints in the memory of real workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    fitting,
    histories,
    journal,
    kill,
    restarts,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client

import dasktune as tune
from dasktune.cluster.data.kept_checkpoints import key_of
from dasktune.cluster.data.memory_checkpoints import CheckpointGone, MemoryCheckpoints
from dasktune.cluster.worker import experiment_plugin as plugin_module
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Continue, Pause
from dasktune.storage.checkpoints.checkpoint_store import CheckpointStore
from dasktune.storage.checkpoints.serialization import to_bytes
from dasktune.storage.fs.storage import Storage
from dasktune.trial.checkpoint_record import CheckpointKind, CheckpointRecord
from dasktune.trial.events import CheckpointLost, CheckpointStored
from dasktune.trial.milestone import Milestone
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.cluster

STEPS = 5


class Counting(tune.Trainable):
    """Counts to five, and waits for a file before its last step."""

    def setup(self, config: dict[str, Any]) -> None:
        self.place = Path(config["place"])
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.count == STEPS:
            wait_for_file(self.place / "go")
        return {"step": self.count, "done": self.count == STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = int(Path(checkpoint, "count").read_text())


class PausingOnce(FIFOScheduler):
    """Pauses each trial after its second step, and lets so many wait until there is a file."""

    def __init__(self, place: Path, waiting: int) -> None:
        self.place = place
        self.waiting = waiting
        self.shown: list[tuple[str, int]] = []

    def next_milestones(self, trial: Trial) -> tuple[Milestone, ...]:
        return (Milestone("training_iteration", 2),)

    def on_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> Any:
        self.shown.append((trial.trial_id, result["training_iteration"]))
        return Pause("not yet") if result["training_iteration"] == 2 else Continue()

    def choose_trial_to_run(self, waiting: Any) -> Trial | None:
        enough = len(waiting.pending) == 0 and len(waiting.paused) <= self.waiting
        if enough and not (self.place / "resume").exists():
            return None
        return super().choose_trial_to_run(waiting)


def tuner_of(place: Path, address: str, *, trials: int, waiting: int = 0, **options: Any) -> tune.Tuner:
    scheduler = PausingOnce(place, waiting)
    in_memory = tune.CheckpointConfig(memory_limit=100_000_000)
    return tune.Tuner(
        Counting,
        param_space={"place": str(place)},
        tune_config=tune.TuneConfig(num_samples=trials, scheduler=scheduler),
        run_config=run_config(place, **{"checkpoint_config": in_memory, **options}),
        client=address,
    )


def started(place: Path, trials: int) -> list[str]:
    """Return where trials have begun, once so many have."""
    return until(
        lambda: (
            len(there := [one["worker"] for one in journal(place, event="TrialStarted")]) >= trials and there
        )
    )


def stored(place: Path) -> list[Path]:
    return list(place.glob("run/trials/*/*/count"))


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with fleet.client() as client:
        yield client


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_trial_resumes_from_the_memory_of_the_worker_that_it_has_left(
    fleet: Fleet, client: Client, tmp_path: Path, isolation: str
) -> None:
    fleet.keep(1)
    tuner = tuner_of(tmp_path, fleet.address, trials=2, isolation=isolation)
    with fitting(tuner) as future:
        # Both are paused on the only worker, and one resumes there.
        started(tmp_path, 3)
        until(lambda: len(journal(tmp_path, event="TrialPaused")) == 2)
        assert stored(tmp_path) == []
        fleet.keep(2)
        *before, after = started(tmp_path, 4)
        assert after not in before
        (tmp_path / "go").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5]] * 2
    assert sorted(step for _, step in restarts(tmp_path)) == [0, 0, 2, 2]
    assert len(journal(tmp_path, event="ResultReported")) == 2 * STEPS
    assert_clean(client)


def test_on_a_disk_that_all_share_pauses_go_there(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    fleet.keep(1)
    by_default = tune.CheckpointConfig()
    with fitting(tuner_of(tmp_path, fleet.address, trials=1, checkpoint_config=by_default)) as run:
        started(tmp_path, 2)
        assert len(stored(tmp_path)) == 1
        (tmp_path / "go").touch()
        results = run.result(timeout=60)
    assert histories(results) == [[1, 2, 3, 4, 5]]
    assert_clean(client)


def test_a_worker_that_dies_takes_checkpoints_along_but_no_trial(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(2)
    tuner = tuner_of(tmp_path, fleet.address, trials=4, waiting=2)
    with fitting(tuner) as future:
        # Two have gone on and wait for the end, the other two are paused.
        until(lambda: len(journal(tmp_path, event="TrialPaused")) == 4)
        started(tmp_path, 6)
        resumed = journal(tmp_path, event="TrialStarted")[4:]
        address = fleet.address_of(fleet.workers[0])
        kill(fleet.workers[0])
        until(lambda: journal(tmp_path, event="CheckpointLost"))
        (tmp_path / "resume").touch()
        (tmp_path / "go").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert histories(results) == [[1, 2, 3, 4, 5]] * 4
    lost = {one["trial_id"] for one in journal(tmp_path, event="CheckpointLost")}
    again = [key for key, step in restarts(tmp_path) if step == 0]
    # Those begin a second time, except one that has resumed on the other worker: Dask keeps only
    # one of two copies. The scheduler still sees each result once.
    lost -= {one["trial_id"] for one in resumed if one["worker"] != address}
    assert sorted(again) == sorted([*(one.trial_id for one in results), *lost])
    shown = tuner.runner.experiment.scheduler.shown
    assert len(shown) == len(set(shown)) == 4 * STEPS
    assert_clean(client)


class Keeper:
    """What a driver and its plugin on the workers do for checkpoints, without trials."""

    def __init__(self, client: Client, place: Path) -> None:
        cloudpickle.register_pickle_by_value(plugin_module)
        self.client, self.place = client, place
        self.events: list[CheckpointLost | CheckpointStored] = []
        self.plugin = plugin_module.ExperimentPlugin(f"dasktune-{place.name}@{client.id}", b"")
        client.register_plugin(self.plugin)
        self.memory = MemoryCheckpoints(
            client,
            plugin=self.plugin.name,
            limit=1000,
            disk_first=False,
            emit=self.events.extend,
            now=lambda: 0.0,
            spawn=lambda work: asyncio.ensure_future(work),
        )

    def leave(self, index: int, address: str) -> str:
        """Leave a checkpoint on a worker, and return its path once Dask has it there."""
        record = CheckpointRecord(
            path=f"trials/t/checkpoint_{index:06d}_i01",
            index=index,
            iteration=1,
            kind=CheckpointKind.MEMORY,
        )
        name, key = self.plugin.name, key_of(self.plugin.name, record.path)
        packed = to_bytes({"number": str(index).encode()}, 1000)

        def put(dask_worker: Any) -> None:
            dask_worker.plugins[name].checkpoints[key] = packed

        self.client.run(put, workers=[address])
        self.call(self.memory.add, "t", record, len(packed or b""), address, self.storage)
        until(lambda: address in self.holders(key))
        kept = self.client.run(lambda dask_worker: dask_worker.plugins[name].checkpoints)
        assert kept[address] == {}
        return record.path

    def holders(self, key: str) -> Any:
        return self.client.run_on_scheduler(
            lambda dask_scheduler: [
                worker.address for worker in getattr(dask_scheduler.tasks.get(key), "who_has", None) or ()
            ]
        )

    @property
    def storage(self) -> Storage:
        return Storage(str(self.place))

    def call(self, function: Any, *arguments: Any) -> Any:
        async def work() -> Any:
            answer = function(*arguments)
            return await answer if asyncio.iscoroutine(answer) else answer

        return self.client.sync(work)

    def close(self) -> None:
        self.call(self.memory.close)
        self.client.unregister_worker_plugin(self.plugin.name)


@pytest.mark.slow
def test_a_checkpoint_moves_with_a_worker_that_retires_and_is_lost_with_one_that_dies(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(3)
    first, second, third = client.scheduler_info()["workers"]
    keeper = Keeper(client, tmp_path)
    path = keeper.leave(0, first)
    client.retire_workers([first], close_workers=True)
    until(lambda: len(client.scheduler_info()["workers"]) == 2)
    keeper.call(keeper.memory.on_worker_lost, first, "it retires")
    # It is on a worker that has not asked for it, and is copied to one that does.
    for address in (second, third):
        key, copy = keeper.call(keeper.memory.fetch_to, path, address)
        assert address in keeper.holders(key)
        copy.release()
    pid = client.run(os.getpid, workers=[third])[third]
    doomed = next(process for process in fleet.workers if process.pid == pid)
    other = keeper.leave(1, third)
    kill(doomed)
    keeper.call(keeper.memory.on_worker_lost, third, "it died")
    [lost] = until(lambda: [one for one in keeper.events if one.path == other])
    assert lost == CheckpointLost(trial_id="t", path=other, reason="it died", time=0.0)
    with pytest.raises(CheckpointGone):
        keeper.call(keeper.memory.fetch_to, other, second)
    keeper.close()
    assert_clean(client)


def test_a_driver_that_leaves_has_its_checkpoints_stored(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(1)
    [address] = client.scheduler_info()["workers"]
    keeper = Keeper(client, tmp_path)
    for index in range(3):
        keeper.call(keeper.memory.store, keeper.leave(index, address))
    assert [type(event) for event in keeper.events] == [CheckpointStored] * 3
    for index, event in enumerate(keeper.events):
        checkpoint = CheckpointStore(keeper.storage).load(event.checkpoint)
        assert Path(checkpoint.path, "number").read_text() == str(index)
    # It is reported once, and the death of its worker is no loss any more.
    keeper.call(keeper.memory.store, "trials/t/checkpoint_000000_i01")
    keeper.call(keeper.memory.on_worker_lost, address, "it died")
    assert [type(event) for event in keeper.events] == [CheckpointStored] * 3
    keeper.close()
    assert_clean(client)
