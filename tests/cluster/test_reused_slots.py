"""A slot takes one trial after the other, and what one of them does to it is not the next one's."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    assert_clean,
    available,
    driver_settings,
    fitting,
    journal,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.schedulers.decision import Continue, Decision, StopOther
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.trial import Trial

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A worker process that declares two CPUs."""
    with LocalCluster(
        n_workers=1, threads_per_worker=2, resources={"CPU": 2}, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client
        assert_clean(client)
        until(lambda: free_cpus(client) == 2)


@pytest.fixture
def hurried() -> Iterator[None]:
    """However busy the machine is, no slot has a rest between two trials."""
    with driver_settings(idle_time=300.0, idle_lease_time=300.0):
        yield


def free_cpus(client: Client) -> float:
    """What the worker itself has left."""
    [left] = client.run(available).values()
    return left["CPU"]


class Model(tune.Trainable):
    """Notes what becomes of each object."""

    def setup(self, config: dict[str, Any]) -> None:
        self.place = Path(config["place"])
        if config["how"] == "fails once" and "failed" not in notes(self.place):
            note(self.place, "failed")
            raise ValueError("no data")
        self.name = uuid.uuid4().hex
        note(self.place, f"setup {self.name}")

    def step(self) -> dict[str, Any]:
        return {"step": self.iteration + 1, "done": self.iteration == 2}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return bool(new_config["how"] == "plain")

    def cleanup(self) -> None:
        note(self.place, f"cleanup {self.name}")


def tuner_of(trainable: Any, hows: list[str], place: Path, client: Client, **options: Any) -> Any:
    scheduler = options.pop("scheduler", None)
    return tune.Tuner(
        trainable,
        param_space={"how": tune.grid_search(hows), "place": str(place)},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=run_config(place, **options),
        client=client,
    )


@pytest.mark.usefixtures("hurried")
def test_objects_are_reused_and_each_is_cleaned_up_once(client: Client, tmp_path: Path) -> None:
    hows = ["plain"] * 10 + ["declines", "fails once"] + ["plain"] * 10
    options = {"failure_config": tune.FailureConfig(max_failures=1)}
    results = tuner_of(Model, hows, tmp_path, client, **options).fit()
    assert statuses(results) == {"TERMINATED"}
    assert [[row["step"] for row in result.history] for result in results] == [[1, 2, 3]] * 22
    assert len(journal(tmp_path, event="TrialFailed")) == 1
    calls = [line.split() for line in notes(tmp_path) if line != "failed"]
    made = Counter(name for call, name in calls if call == "setup")
    cleaned = Counter(name for call, name in calls if call == "cleanup")
    # The experiment is over: nothing is kept any more.
    assert made == cleaned
    assert set(made.values()) == {1}
    assert 2 <= len(made) < 22


def linger(place: Path, what: str) -> None:
    """Ignore every interrupt until a test makes a file."""
    note(place, f"{what} begins")
    while not (place / f"release {what}").exists():
        try:
            time.sleep(0.01)
        except BaseException:
            note(place, f"{what} does not listen")


class Lingering(Model):
    """Steps or cleans up for as long as a test wants."""

    def step(self) -> dict[str, Any]:
        how = self.config["how"]
        if how == "stuck":
            linger(self.place, "step")
        if how.startswith("waits"):
            wait_for_file(self.place / how)
        return {"done": True}

    def cleanup(self) -> None:
        if self.config["how"] == "lingers":
            linger(self.place, "cleanup")


@pytest.mark.usefixtures("hurried")
def test_a_cleanup_that_does_not_end_keeps_its_resources_and_others_run_on(
    client: Client, tmp_path: Path
) -> None:
    hows = ["lingers", "waits 1", "declines", "waits 2"]
    with fitting(tuner_of(Lingering, hows, tmp_path, client, stop_grace=0.2)) as future:
        # The first one's place went to the third, which has ended although the cleanup still runs.
        until(lambda: len(journal(tmp_path, event="TrialEnded")) == 2)
        until(lambda: "cleanup does not listen" in notes(tmp_path))
        assert free_cpus(client) == 0
        assert len(journal(tmp_path, event="TrialStarted")) == 3
        (tmp_path / "waits 1").touch()
        until(lambda: len(journal(tmp_path, event="TrialStarted")) == 4)
        assert free_cpus(client) == 0
        (tmp_path / "release cleanup").touch()
        until(lambda: free_cpus(client) == 1)
        (tmp_path / "waits 2").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
    assert not journal(tmp_path, event="StartFailed")


class StopTheStuck(TrialScheduler):
    """Stops the trial that is stuck at the first result of another one."""

    stuck = ""

    def on_trial_add(self, trial: Trial) -> None:
        if trial.config["how"] == "stuck":
            self.stuck = trial.trial_id

    def on_trial_result(self, trial: Trial, result: Any) -> Decision:
        return Continue(commands=(StopOther(trial_id=self.stuck, reason="stuck"),))

    def choose_trial_to_run(self, waiting: Waiting) -> Trial | None:
        return next(iter(waiting.pending.values()), None)


def test_a_step_that_does_not_end_keeps_its_resources_until_it_does(client: Client, tmp_path: Path) -> None:
    hows = ["stuck", "waits 1", "waits 2"]
    options = {"scheduler": StopTheStuck(), "stop_grace": 0.2}
    with fitting(tuner_of(Lingering, hows, tmp_path, client, **options)) as future:
        until(lambda: "step begins" in notes(tmp_path))
        (tmp_path / "waits 1").touch()
        until(lambda: journal(tmp_path, event="TrialStopped"))
        # The driver may leave the thread behind before that has noted its interrupt.
        until(lambda: "step does not listen" in notes(tmp_path))
        # The third one runs in the place of the second.
        until(lambda: len(journal(tmp_path, event="TrialStarted")) == 3)
        assert free_cpus(client) == 0
        (tmp_path / "release step").touch()
        until(lambda: free_cpus(client) == 1)
        (tmp_path / "waits 2").touch()
        results = future.result(timeout=60)
    assert statuses(results) == {"TERMINATED"}
