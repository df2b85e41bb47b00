"""Experiments that always want more share a cluster fairly.

Experiments have trials without end until the test makes a file. So nothing depends on how
fast this machine is: an experiment that gets no share lets the test wait for ever.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    PATIENCE,
    Fleet,
    assert_clean,
    driver_settings,
    fitting,
    journal,
    kill,
    note,
    notes,
    readings_of_workers,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.cli import main
from dasktune.cluster.membership.stale_plugins import remove_stale_plugins
from dasktune.cluster.sharing.share_plugin import PLUGIN_NAME
from dasktune.cluster.sharing.share_reporter import ShareReporter
from dasktune.cluster.sharing.share_summary import read_shares
from dasktune.stopper import Stopper

pytestmark = pytest.mark.cluster

SCRIPT = """
import sys
from pathlib import Path
from test_fair_share_on_cluster import endless
endless(Path(sys.argv[1]), sys.argv[2], sys.argv[3]).fit()
"""


class WhenThereIsAFile(Stopper):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.path.exists()


def short(config: dict[str, Any]) -> None:
    """Note the experiment's name, and hold the CPU for a moment."""
    note(Path(config["place"]), config["name"])
    time.sleep(config["seconds"])
    tune.report({"x": 1})


def endless(
    place: Path,
    address: str,
    name: str,
    *,
    cpus: int = 1,
    gpus: float = 0,
    seconds: float = 0.1,
    **options: Any,
) -> tune.Tuner:
    """Return an experiment that runs trials until there is a file "stop-<name>" or "stop"."""
    return tune.Tuner(
        tune.with_resources(short, {"cpu": cpus, "gpu": gpus} if gpus else {"cpu": cpus}),
        param_space={"place": str(place), "name": name, "seconds": seconds, "x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=100_000),
        run_config=run_config(
            place,
            name,
            stop=WhenThereIsAFile(place / f"stop-{name}"),
            isolation="thread",
            dashboard=False,
            **options,
        ),
        client=address,
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, set_as_default=False) as client:
        yield client
        assert_clean(client)


@contextlib.contextmanager
def stopping(place: Path, *names: str) -> Iterator[None]:
    """End the experiments at the end of a test that passes or fails."""
    try:
        yield
    finally:
        for name in names:
            (place / f"stop-{name}").touch()


def begun(place: Path) -> Counter[str]:
    """Return how many trials of each experiment have begun."""
    return Counter(notes(place))


def test_a_second_experiment_begins_while_the_first_still_has_trials(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    with fitting(endless(tmp_path, address, "first")) as first, stopping(tmp_path, "first", "second"):
        until(lambda: begun(tmp_path)["first"] >= 6)
        with fitting(endless(tmp_path, address, "second")) as second:
            until(lambda: begun(tmp_path)["second"] >= 3)
            (tmp_path / "stop-second").touch()
            assert statuses(second.result(PATIENCE)) <= {"TERMINATED"}
        # What the second one had is used again.
        before = begun(tmp_path)["first"]
        until(lambda: begun(tmp_path)["first"] >= before + 12)
        (tmp_path / "stop-first").touch()
        assert "ERROR" not in statuses(first.result(PATIENCE))


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "least", "most"), [(1.0, 0.35, 0.65), (3.0, 0.6, 0.88)])
def test_trials_begin_in_proportion_to_the_weights(
    client: Client, tmp_path: Path, weight: float, least: float, most: float
) -> None:
    address = client.scheduler.address
    heavy = endless(tmp_path, address, "heavy", weight=weight)
    with stopping(tmp_path, "heavy", "light"), fitting(heavy):
        with fitting(endless(tmp_path, address, "light")):
            until(lambda: min(begun(tmp_path)[name] for name in ("heavy", "light")) >= 5)
            since = len(notes(tmp_path))
            until(lambda: len(notes(tmp_path)) >= since + 120)
            counts = Counter(notes(tmp_path)[since:])
            (tmp_path / "stop-light").touch()
        (tmp_path / "stop-heavy").touch()
    assert least <= counts["heavy"] / counts.total() <= most, counts


@pytest.mark.slow
def test_a_share_is_changed_while_the_experiments_run(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = client.scheduler.address
    heavy = endless(tmp_path, address, "heavy")
    with stopping(tmp_path, "heavy", "light"), fitting(heavy):
        with fitting(endless(tmp_path, address, "light")):
            until(lambda: min(begun(tmp_path)[name] for name in ("heavy", "light")) >= 5)
            assert heavy.runner is not None
            heavy.runner.commands.set_share(weight=4).result(PATIENCE)
            until(lambda: shown(address, capsys)["heavy"]["weight"] == 4)
            # The next plan has the new weights; between two trials nothing waits for a moment.
            until(lambda: 0.1 < (waiting_light(address, capsys) or {"due": 1})["due"] < 0.4)
            # The lags of equal shares are bounded, and soon forgotten.
            since = len(notes(tmp_path)) + 30
            until(lambda: len(notes(tmp_path)) >= since + 150)
            counts = Counter(notes(tmp_path)[since:])
            # Dask's priority of later tasks changes, too; Dask stores it negated, and it is half a
            # step above that of other tasks.
            heavy.runner.commands.set_share(priority=1).result(PATIENCE)
            until(lambda: -1.5 in client.run_on_scheduler(priorities_of_leases))
            (tmp_path / "stop-light").touch()
        (tmp_path / "stop-heavy").touch()
    assert 0.65 <= counts["heavy"] / counts.total() < 1, counts


def shown(address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the command line shows of the experiments on the cluster, by name."""
    capsys.readouterr()
    assert main(["ls", "--address", address, "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert 0 < summary["totals"]["CPU"] <= 4
    return {one["name"]: one for one in summary["experiments"]}


def waiting_light(address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any] | None:
    """Return what is shown of the experiment "light" while it waits for its share."""
    light = shown(address, capsys)["light"]
    assert (light["weight"], light["priority"]) == (1, 0)
    waits = light["waiting"] > 0 and light["waiting_s"] >= 0
    return light if waits and light["due"] is not None else None


def priorities_of_leases(dask_scheduler: Any) -> set[float]:
    tasks = dask_scheduler.tasks.items()
    return {task.priority[0] for key, task in tasks if "-lease-" in str(key) and task.priority}


def test_a_large_trial_begins_among_small_ones(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    with stopping(tmp_path, "small", "large"), fitting(endless(tmp_path, address, "small")):
        until(lambda: begun(tmp_path)["small"] >= 8)
        # It needs all CPUs of a worker, which are never free at the same time by themselves.
        with fitting(endless(tmp_path, address, "large", cpus=2)):
            until(lambda: begun(tmp_path)["large"] >= 2)
            (tmp_path / "stop-large").touch()
        (tmp_path / "stop-small").touch()


def devices_held(dask_scheduler: Any) -> list[dict[int, float]]:
    """Return the parts of GPUs of each lease that a worker has granted.

    The plugin that knows them comes a little after the first trials of an experiment.
    """
    plugin = dask_scheduler.plugins.get(PLUGIN_NAME)
    leases = plugin.records.by_experiment.values() if plugin else ()
    return [dict(lease.gpus) for held in leases for lease in held.values() if lease.gpus]


@pytest.mark.slow
def test_a_whole_gpu_becomes_free_among_halves(tmp_path: Path) -> None:
    declared = {"CPU": 6, "GPU": 2}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=6, resources=declared, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        stopping(tmp_path, "halves", "whole"),
        fitting(endless(tmp_path, cluster.scheduler_address, "halves", gpus=0.5)),
    ):
        until(lambda: begun(tmp_path)["halves"] >= 8)
        with fitting(endless(tmp_path, cluster.scheduler_address, "whole", gpus=1)):
            seen: list[dict[int, float]] = []

            def has_had_turns() -> bool:
                seen.extend(client.run_on_scheduler(devices_held))
                return begun(tmp_path)["whole"] >= 5

            until(has_had_turns)
            before = begun(tmp_path)["halves"]
            until(lambda: begun(tmp_path)["halves"] >= before + 5)
            for name in ("halves", "whole"):
                (tmp_path / f"stop-{name}").touch()
    # Each lease has one device, which the plan knows from the worker.
    assert {tuple(parts.values()) for parts in seen} == {(0.5,), (1.0,)}


def test_a_higher_priority_comes_first(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    with stopping(tmp_path, "low", "high"), fitting(endless(tmp_path, address, "low")):
        until(lambda: begun(tmp_path)["low"] >= 4)
        with fitting(endless(tmp_path, address, "high", priority=1)):
            until(lambda: begun(tmp_path)["high"] >= 10)
            since = len(notes(tmp_path))
            until(lambda: len(notes(tmp_path)) >= since + 60)
            counts = Counter(notes(tmp_path)[since:])
            (tmp_path / "stop-high").touch()
        before = begun(tmp_path)["low"]
        until(lambda: begun(tmp_path)["low"] >= before + 5)
        (tmp_path / "stop-low").touch()
    assert counts["high"] > 0.8 * counts.total(), counts


def timed(config: dict[str, Any]) -> None:
    """Note the experiment's name, the worker's process, and from when until when it ran there."""
    since = time.monotonic()
    time.sleep(0.1)
    note(Path(config["place"]), f"{config['name']} {os.getpid()} {since} {time.monotonic()}")
    tune.report({"x": 1})


@pytest.mark.slow
def test_experiments_share_the_memory_that_their_trials_request(client: Client, tmp_path: Path) -> None:
    """Two CPUs of each worker are enough for two trials, and its memory only for one."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    memory = int(0.6 * min(worker["memory_limit"] for worker in workers))

    def tuner(name: str) -> tune.Tuner:
        return tune.Tuner(
            tune.with_resources(timed, {"cpu": 1, "memory": memory}),
            param_space={"place": str(tmp_path), "name": name},
            tune_config=tune.TuneConfig(num_samples=100_000),
            run_config=run_config(
                tmp_path,
                name,
                stop=WhenThereIsAFile(tmp_path / f"stop-{name}"),
                isolation="thread",
                dashboard=False,
            ),
            client=client.scheduler.address,
        )

    def ran() -> list[list[str]]:
        return [line.split() for line in notes(tmp_path)]

    with stopping(tmp_path, "first", "second"), fitting(tuner("first")):
        until(lambda: len(ran()) >= 3)
        with fitting(tuner("second")):
            until(lambda: Counter(line[0] for line in ran())["second"] >= 8)
            for name in ("first", "second"):
                (tmp_path / f"stop-{name}").touch()
    by_worker: dict[str, list[tuple[float, float]]] = {}
    for _, worker, since, end in ran():
        by_worker.setdefault(worker, []).append((float(since), float(end)))
    assert len(by_worker) == 2
    for spans in by_worker.values():
        spans.sort()
        assert all(end <= since for (_, end), (since, _) in pairwise(spans))


def test_the_share_of_a_killed_driver_is_used_again(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), address, "second"]
    with stopping(tmp_path, "first"), fitting(endless(tmp_path, address, "first")):
        until(lambda: begun(tmp_path)["first"] >= 4)
        log = (tmp_path / "log").open("wb")
        with log, subprocess.Popen(command, cwd=Path(__file__).parent, stderr=log) as driver:
            until(lambda: begun(tmp_path)["second"] >= 4)
            kill(driver)
        until(lambda: client.run_on_scheduler(sharing)["experiments"] == 1)
        until(lambda: client.run_on_scheduler(sharing)["leases"] == 4)
        (tmp_path / "stop-first").touch()
    # The next driver on the cluster would do this.
    client.sync(remove_stale_plugins, client)


def sharing(dask_scheduler: Any, name: str = PLUGIN_NAME) -> dict[str, int]:
    plugin = dask_scheduler.plugins[name]
    return {
        "experiments": len(plugin.experiments),
        "leases": sum(map(len, plugin.records.by_experiment.values())),
        "plans": plugin.plans,
        "calls": plugin.calls,
    }


def test_an_experiment_alone_causes_no_plan_and_no_call_but_its_readings(
    client: Client, tmp_path: Path
) -> None:
    client.sync(_register, client)
    until(lambda: client.run_on_scheduler(sharing)["experiments"] == 0)
    before = client.run_on_scheduler(sharing)
    alone = endless(tmp_path, client.scheduler.address, "alone", seconds=0.01)
    with readings_of_workers() as readings, fitting(alone):
        until(lambda: begun(tmp_path)["alone"] >= 60)
        (tmp_path / "stop-alone").touch()
    after = client.run_on_scheduler(sharing)
    assert after["plans"] == before["plans"]
    assert 0 < after["calls"] - before["calls"] <= len(readings)


async def _register(client: Client) -> None:
    await ShareReporter(client, name="x", label="x", weight=1, priority=0, waiting=_unused).register()


def _unused() -> Any:
    raise AssertionError


def test_experiments_run_although_the_plugin_is_missing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_registered(self: ShareReporter) -> None:
        pass

    address = client.scheduler.address
    client.sync(_register, client)
    with stopping(tmp_path, "first", "second"), fitting(endless(tmp_path, address, "first")) as first:
        until(lambda: begun(tmp_path)["first"] >= 4)
        with fitting(endless(tmp_path, address, "second")) as second:
            until(lambda: begun(tmp_path)["second"] >= 4)
            # Somebody takes it away: both keep what they hold, and use what is free.
            monkeypatch.setattr(ShareReporter, "register", not_registered)
            client.unregister_scheduler_plugin(PLUGIN_NAME)
            assert read_shares(address, timeout_s=PATIENCE) == {"totals": {}, "experiments": []}
            counts = begun(tmp_path)
            until(lambda: begun(tmp_path).total() >= counts.total() + 20)
            (tmp_path / "stop-first").touch()
            assert "ERROR" not in statuses(first.result(PATIENCE))
            before = begun(tmp_path)["second"]
            until(lambda: begun(tmp_path)["second"] >= before + 8)
            (tmp_path / "stop-second").touch()
            assert "ERROR" not in statuses(second.result(PATIENCE))


def test_an_experiment_that_may_use_one_worker_only_begins_there(client: Client, tmp_path: Path) -> None:
    address = client.scheduler.address
    allowed = [sorted(client.scheduler_info(n_workers=-1)["workers"])[-1]]
    with stopping(tmp_path, "everywhere", "there"), fitting(endless(tmp_path, address, "everywhere")):
        until(lambda: begun(tmp_path)["everywhere"] >= 8)
        with fitting(endless(tmp_path, address, "there", workers=allowed)):
            until(lambda: begun(tmp_path)["there"] >= 6)
            (tmp_path / "stop-there").touch()
        (tmp_path / "stop-everywhere").touch()


def test_experiments_of_a_group_divide_its_share(client: Client, tmp_path: Path) -> None:
    address, names = client.scheduler.address, ("one", "two", "other")
    group = {"one": "team", "two": "team", "other": None}

    def due() -> dict[str, float | None]:
        return {one["name"]: one["due"] for one in read_shares(address, timeout_s=PATIENCE)["experiments"]}

    with contextlib.ExitStack() as running, stopping(tmp_path, *names):
        for name in names:
            tuner = endless(tmp_path, address, name, share_group=group[name])
            running.enter_context(fitting(tuner))
        until(lambda: min(begun(tmp_path)[name] for name in names) >= 3)
        # Between two trials one of them may wait for nothing at a moment.
        until(lambda: due() == {"one": 0.25, "two": 0.25, "other": 0.5})
        for name in names:
            (tmp_path / f"stop-{name}").touch()


class Steps(tune.Trainable):
    """Notes each step, and saves how many it has done."""

    def setup(self, config: dict[str, Any]) -> None:
        self.place, self.name, self.done = Path(config["place"]), config["name"], 0
        note(self.place, f"{self.name} begins")

    def step(self) -> dict[str, Any]:
        self.done += 1
        note(self.place, f"{self.name} {self.trial_id} {self.done}")
        time.sleep(0.05)
        return {"x": self.done, "done": (self.place / f"stop-{self.name}").exists()}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"done": self.done}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.done = checkpoint["done"]


def test_long_trials_yield_to_an_experiment_that_waits_and_repeat_no_step(
    client: Client, tmp_path: Path
) -> None:
    """Without `yields_after` the second experiment would wait until trials of the first end."""
    address = client.scheduler.address
    long = tune.Tuner(
        Steps,
        param_space={"place": str(tmp_path), "name": "long"},
        tune_config=tune.TuneConfig(num_samples=4),
        run_config=run_config(
            tmp_path,
            "long",
            isolation="thread",
            dashboard=False,
            yields_after=0.5,
            failure_config=tune.FailureConfig(max_failures=0),
        ),
        client=address,
    )
    with stopping(tmp_path, "long", "short"), fitting(long) as first:
        until(lambda: begun(tmp_path)["long begins"] == 4)
        with fitting(endless(tmp_path, address, "short")):
            until(lambda: begun(tmp_path)["short"] >= 5)
            (tmp_path / "stop-short").touch()
        # Those that have yielded continue when there is room again.
        until(lambda: client.run_on_scheduler(sharing)["leases"] == 4)
        (tmp_path / "stop-long").touch()
        assert statuses(first.result(PATIENCE)) == {"TERMINATED"}
    steps = [one for one in notes(tmp_path) if one.startswith("long ") and one != "long begins"]
    assert len(steps) == len(set(steps)), "a step has run twice"
    yielded = journal(tmp_path, "long", event="ShareExceeded")
    actions = [action for one in yielded for action in one.get("actions", ())]
    assert actions
    assert {action["do"] for action in actions} == {"YieldTrial"}
    assert all("more than its share of the cluster" in action["reason"] for action in actions)
    assert not journal(tmp_path, "long", event="TrialLost")


@pytest.mark.slow
def test_a_scheduler_that_comes_back_shares_its_cluster_again(fleet: Fleet, tmp_path: Path) -> None:
    fleet.keep(2)
    first, second = (endless(tmp_path, fleet.address, name) for name in ("first", "second"))
    with stopping(tmp_path, "first", "second"), fitting(first):
        until(lambda: begun(tmp_path)["first"] >= 3)
        kill(fleet.scheduler)
        for worker in fleet.workers:
            kill(worker)
        fleet.start_scheduler()
        fleet.keep(2)
        before = begun(tmp_path)["first"]
        until(lambda: begun(tmp_path)["first"] >= before + 3)
        # The first driver has registered the plugin again.
        with fleet.client() as client:
            until(
                lambda: (
                    PLUGIN_NAME in client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
                )
            )
        with fitting(second):
            until(lambda: begun(tmp_path)["second"] >= 3)
            (tmp_path / "stop-second").touch()
        (tmp_path / "stop-first").touch()


def gated(config: dict[str, Any]) -> dict[str, int]:
    note(Path(config["place"]), config["name"])
    wait_for_file(Path(config["place"], config["gate"]))
    return {"x": 1}


def test_a_driver_says_whose_trials_it_waits_for(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def tuner(name: str) -> tune.Tuner:
        return tune.Tuner(
            gated,
            param_space={"place": str(tmp_path), "name": name, "gate": f"gate-{name}"},
            tune_config=tune.TuneConfig(num_samples=6),
            run_config=run_config(tmp_path, name, isolation="thread", dashboard=False),
            client=client.scheduler.address,
        )

    with (
        driver_settings(warning_interval=0.5),
        caplog.at_level(logging.WARNING, "dasktune"),
        fitting(tuner("first")),
    ):
        until(lambda: begun(tmp_path)["first"] == 4)
        with fitting(tuner("second")):
            try:
                until(lambda: "waits for its share: experiment first holds 4 of 4 CPUs" in caplog.text)
            finally:
                (tmp_path / "gate-first").touch()
                (tmp_path / "gate-second").touch()
