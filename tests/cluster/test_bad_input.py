"""What is wrong fails before a trial starts and says what to do; what is right leaves its files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cluster_kit import WITHOUT_DASKTUNE, journal, until
from distributed import Client, LocalCluster, Nanny

import dasktune as tune
from dasktune.errors import ClusterError, PreflightError, ReportError, TrialError
from dasktune.schedulers import ASHAScheduler
from dasktune.stopper import MaximumIterationStopper
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal
from dasktune.trial.status import PublicStatus

pytestmark = pytest.mark.cluster

#: Runs in a worker's process before the worker starts: it has another version of dasktune.
WITH_AN_OLD_ONE = "import dasktune\ndasktune.__version__ = '0.0.1'\n"


@contextlib.contextmanager
def local_cluster(**options: Any) -> Iterator[LocalCluster]:
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", **options}
    with LocalCluster(**options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(n_workers=2) as cluster:
        yield cluster


def tuner(cluster: Any, tmp_path: Path, trainable: Any = None, **options: Any) -> tune.Tuner:
    run = {"storage_path": tmp_path / "runs", "name": "e", "verbose": 0, **options.pop("run", {})}
    space = options.pop("space", {"x": tune.grid_search([1, 2, 3])})
    return tune.Tuner(
        trainable or _train_module().train,
        param_space=space,
        tune_config=tune.TuneConfig(**{"metric": "loss", "mode": "min", **options}),
        run_config=tune.RunConfig(**run),
        client=cluster,
    )


def _train_module() -> ModuleType:
    return sys.modules[__name__]


def train(config: dict[str, Any]) -> None:
    for step in range(4):
        tune.report({"loss": config["x"] / (step + 1), "step": step})


def no_trial_started(tmp_path: Path) -> bool:
    """Whether nothing was left behind, not even the experiment's directory."""
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    return files == [] and not (tmp_path / "runs" / "e").exists()


# What the cluster cannot do


def test_a_request_larger_than_any_worker_shows_both_at_once(cluster: LocalCluster, tmp_path: Path) -> None:
    trainable = tune.with_resources(train, {"cpu": 64})
    with pytest.raises(PreflightError, match=r"asked +64\n.* 1/1\n") as error:
        tuner(cluster, tmp_path, trainable).fit()
    assert "Ask for less with with_resources()" in str(error.value)
    assert no_trial_started(tmp_path)


def test_a_request_that_depends_on_the_configuration_is_known_before_the_first_trial(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    trainable = tune.with_resources(train, lambda config: {"cpu": config["cpus"]})
    space = {"x": 1, "cpus": tune.choice([32])}
    with pytest.raises(PreflightError, match=r"asked +32\n"):
        tuner(cluster, tmp_path, trainable, space=space).fit()
    assert no_trial_started(tmp_path)


def test_an_address_without_a_scheduler_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no Dask scheduler answered at tcp://127\.0\.0\.1:1 "):
        tuner("tcp://127.0.0.1:1", tmp_path, run={"scheduler_wait": 1.0}).fit()
    assert no_trial_started(tmp_path)


@pytest.mark.parametrize(
    ("preload", "message"),
    [
        (WITHOUT_DASKTUNE, r"dasktune must be importable on the workers, got .*Install dasktune \d"),
        (WITH_AN_OLD_ONE, r"the workers' dasktune must be .* as in this process, got 0\.0\.1 on"),
    ],
)
def test_workers_that_lack_something_are_named_before_the_start(
    tmp_path: Path, preload: str, message: str
) -> None:
    with (
        local_cluster(preload=preload) as lacking,
        pytest.raises(PreflightError, match=message),
    ):
        tuner(lacking, tmp_path).fit()
    assert no_trial_started(tmp_path)


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that the workers cannot import, because they are older than the path to it."""
    name = f"only_here_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "def train(config):\n    return {'loss': helper(config['x'])}\n\n\ndef helper(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return __import__(name)


def test_a_local_module_travels_with_the_trainable(
    cluster: LocalCluster, tmp_path: Path, only_here: ModuleType
) -> None:
    results = tuner(cluster, tmp_path, only_here.train).fit()
    assert [result.metrics["loss"] for result in results] == [2, 4, 6]


def test_a_module_that_is_said_to_be_installed_is_named_where_it_is_not(
    cluster: LocalCluster, tmp_path: Path, only_here: ModuleType
) -> None:
    with pytest.raises(PreflightError, match=f"{only_here.__name__}.*code='auto' would let it"):
        tuner(cluster, tmp_path, only_here.train, run={"code": "installed"}).fit()


# What goes wrong in a trial stays there


def only_some_report_the_metric(config: dict[str, Any]) -> None:
    tune.report({"loss": 1.0} if config["x"] == 1 else {"accuracy": 0.5})


def returns_a_list(config: dict[str, Any]) -> None:
    tune.report([1, 2])  # type: ignore[arg-type]


def reports_a_path_as_checkpoint(config: dict[str, Any]) -> None:
    tune.report({"loss": 1}, checkpoint="/somewhere")  # type: ignore[arg-type]


def interrupts(config: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def exits(config: dict[str, Any]) -> None:
    sys.exit("no licence")


def raises_on_two(config: dict[str, Any]) -> dict[str, Any]:
    if config["x"] == 2:
        raise LookupError("two is not there")
    return {"loss": config["x"]}


def test_a_metric_may_be_missing_where_that_is_wanted(cluster: LocalCluster, tmp_path: Path) -> None:
    strict = {"strict_metrics": False, "scheduler": ASHAScheduler(max_t=2)}
    results = tuner(cluster, tmp_path, only_some_report_the_metric, **strict).fit()
    assert results.num_terminated == 3
    assert results.get_best_result().config["x"] == 1


@pytest.mark.parametrize(
    ("trainable", "errors", "message"),
    [
        (only_some_report_the_metric, 2, r"metrics must hold 'loss', got .*'accuracy'"),
        (interrupts, 3, r"KeyboardInterrupt"),
        (exits, 3, r"SystemExit: no licence"),
        (raises_on_two, 1, r"LookupError: two is not there"),
    ],
)
def test_a_trial_that_misbehaves_fails_alone(
    cluster: LocalCluster,
    tmp_path: Path,
    trainable: Callable[[dict[str, Any]], Any],
    errors: int,
    message: str,
) -> None:
    # One after the other: the first has a result.
    results = tuner(cluster, tmp_path, trainable, max_concurrent_trials=1).fit()
    assert (results.num_errors, results.num_terminated) == (errors, 3 - errors)
    assert all(re.search(message, error.message) for error in results.errors), results.errors
    written = sorted((tmp_path / "runs" / "e" / "trials").glob("*/error.txt"))
    assert len(written) == errors


@pytest.mark.parametrize(
    ("trainable", "metric", "message"),
    [
        (train, "losses", r"metrics must hold 'losses', got \['loss', 'step'\]. Did you mean 'loss'\?"),
        (returns_a_list, "loss", "metrics must be a dict .*, got list"),
        (reports_a_path_as_checkpoint, "loss", "checkpoint must be a Checkpoint, got str"),
    ],
)
def test_an_error_that_every_trial_would_have_ends_the_experiment_and_is_raised(
    cluster: LocalCluster, tmp_path: Path, trainable: Callable[..., Any], metric: str, message: str
) -> None:
    space = {"x": tune.grid_search([*range(1, 40)])}
    it = tuner(cluster, tmp_path, trainable, metric=metric, space=space)
    with pytest.raises(ReportError, match=message) as raised:
        it.fit()
    # The message is shown once.
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)
    assert 1 <= it.get_results().num_errors < 20


def endless_but_for_two(config: dict[str, Any]) -> None:
    raises_on_two(config)
    endless(config)


def leases(cluster: LocalCluster) -> dict[str, float]:
    """What the scheduler counts as taken, over all workers."""
    workers = cluster.scheduler.workers.values()
    return {k: v for worker in workers for k, v in worker.used_resources.items() if v}


def test_fail_fast_ends_everything_and_gives_all_back(cluster: LocalCluster, tmp_path: Path) -> None:
    run = {"failure_config": tune.FailureConfig(fail_fast=True)}
    space = {"x": tune.grid_search([2, *range(10, 40)])}
    results = tuner(cluster, tmp_path, endless_but_for_two, space=space, run=run).fit()
    assert (results.num_errors, results.num_terminated) == (1, len(results) - 1)
    assert sum(1 for result in results if result.history) <= 2
    assert leases(cluster) == {}


def test_fail_fast_can_raise_what_the_user_raised(cluster: LocalCluster, tmp_path: Path) -> None:
    run = {"failure_config": tune.FailureConfig(fail_fast="raise")}
    it = tuner(cluster, tmp_path, raises_on_two, run=run)
    with pytest.raises(LookupError, match="two is not there") as error:
        it.fit()
    assert isinstance(error.value.__cause__, TrialError)
    assert "raises_on_two" in str(error.value.__cause__)
    assert it.get_results().num_errors == 1
    assert leases(cluster) == {}


# What is right


@pytest.mark.slow
def test_a_silent_run_is_silent_from_the_cluster_s_start_to_its_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(QUIET_SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert len(list((tmp_path / "runs").glob("e/trials/*"))) == 3


QUIET_SCRIPT = """
import sys
import dasktune as tune

def train(config):
    for step in range(3):
        tune.report({"loss": config["x"] * step})

if __name__ == "__main__":
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=sys.argv[1], name="e", verbose=0),
    ).fit()
    assert results.num_terminated == 3
"""


def saves(config: dict[str, Any]) -> None:
    for step in range(3):
        checkpoint = tune.Checkpoint.from_dict({"step": step, "x": config["x"]})
        tune.report({"loss": config["x"] - step}, checkpoint=checkpoint)


def test_the_results_are_there_in_memory_and_on_disk(cluster: LocalCluster, tmp_path: Path) -> None:
    it = tuner(cluster, tmp_path, saves)
    results = it.fit()
    best = results.get_best_result()
    assert (best.config, best.metrics["loss"]) == ({"x": 1}, -1)
    assert best.checkpoint is not None
    assert best.checkpoint.to_dict() == {"step": 2, "x": 1}
    assert results.errors == []
    assert it.get_results() is results
    assert best.path is not None
    assert Path(best.path).is_dir()
    home = tmp_path / "runs" / "e"
    spec = json.loads((home / "experiment.json").read_text())
    assert (spec["name"], spec["metric"], spec["mode"]) == ("e", "loss", "min")
    params = [json.loads(p.read_text()) for p in home.glob("trials/*/params.json")]
    assert sorted(p["x"] for p in params) == [1, 2, 3]
    told = read_journal(Storage(str(home)))
    reported = [record for record in told if record["event"] == "ResultReported"]
    assert len(reported) == 9
    again = tuner(cluster, tmp_path, saves).fit()
    assert Path(again.experiment_path) == tmp_path / "runs" / "e_2"


def test_the_results_make_a_table(cluster: LocalCluster, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = tuner(cluster, tmp_path).fit().get_dataframe()
    assert sorted(table["config/x"]) == [1, 2, 3]
    assert sorted(table["loss"]) == [0.25, 0.5, 0.75]


def endless(config: dict[str, Any]) -> None:
    step, pause = 0, threading.Event()
    while not pause.wait(0.01):
        step += 1
        tune.report({"loss": 1 / step})


@pytest.mark.parametrize(
    "stop",
    [
        {"training_iteration": 5},
        MaximumIterationStopper(5),
        lambda trial_id, result: result["training_iteration"] >= 5,
    ],
)
def test_every_kind_of_stop_ends_trials_at_the_same_result(
    cluster: LocalCluster, tmp_path: Path, stop: Any
) -> None:
    results = tuner(cluster, tmp_path, endless, run={"stop": stop}).fit()
    assert [result.metrics["training_iteration"] for result in results] == [5, 5, 5]
    assert results.num_terminated == 3


def test_a_time_budget_ends_trials_that_never_would(cluster: LocalCluster, tmp_path: Path) -> None:
    results = tuner(cluster, tmp_path, endless, time_budget_s=timedelta(seconds=1)).fit()
    assert {result.status for result in results} == {PublicStatus.TERMINATED}


def test_no_more_trials_are_unfinished_than_was_asked(cluster: LocalCluster, tmp_path: Path) -> None:
    results = tuner(cluster, tmp_path, max_concurrent_trials=1).fit()
    assert results.num_terminated == 3
    path = next((tmp_path / "runs" / "e" / "journal").iterdir())
    running = most = 0
    for line in path.read_text().splitlines():
        record = json.loads(line)
        running += bool(record.get("event") == "Suggested" and record["config"])
        running -= record.get("event") == "TrialEnded"
        most = max(most, running)
    assert most == 1


def test_a_scheduler_that_compares_stops_what_is_worse(cluster: LocalCluster, tmp_path: Path) -> None:
    scheduler = ASHAScheduler(max_t=16, grace_period=1, reduction_factor=2)
    space = {"x": tune.grid_search(list(range(1, 9)))}
    results = tuner(cluster, tmp_path, constant, space=space, scheduler=scheduler).fit()
    assert results.num_terminated == 8
    assert results.get_best_result().config == {"x": 1}
    assert sum(len(result.history) for result in results) < 8 * 16


def constant(config: dict[str, Any]) -> None:
    for _ in range(16):
        tune.report({"loss": config["x"]})


# Where fit() is called


def test_fit_runs_in_any_thread(cluster: LocalCluster, tmp_path: Path) -> None:
    found: list[tune.ResultGrid] = []
    it = tuner(cluster, tmp_path)
    thread = threading.Thread(target=lambda: found.append(it.fit()))
    thread.start()
    thread.join()
    assert found[0].num_terminated == 3


def test_the_coroutine_runs_beside_an_asynchronous_client(cluster: LocalCluster, tmp_path: Path) -> None:
    async def main() -> tune.ResultGrid:
        address = cluster.scheduler_address
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            return await tuner(client, tmp_path).fit_async()

    assert asyncio.run(main()).num_terminated == 3


def tells_that_it_runs(config: dict[str, Any]) -> None:
    Path(config["sign"]).touch()
    endless(config)


def test_a_cancelled_coroutine_ends_the_experiment(cluster: LocalCluster, tmp_path: Path) -> None:
    sign = tmp_path / "runs-now"
    it = tuner(cluster, tmp_path, tells_that_it_runs, space={"sign": str(sign)})

    async def main() -> None:
        fitting = asyncio.ensure_future(it.fit_async())
        while not sign.exists():
            await asyncio.sleep(0.01)
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting

    asyncio.run(main())
    # Its code ran, whether or not the driver had heard of that yet.
    [result] = it.get_results()
    assert result.status in (PublicStatus.PENDING, PublicStatus.RUNNING)
    assert leases(cluster) == {}


# Workers that come late


@pytest.mark.slow
def test_a_late_worker_without_dasktune_takes_no_trial_down(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with local_cluster() as growing, Client(growing, set_as_default=False) as client:
        it = tuner(growing, tmp_path, waits_for_a_file, space=_gated(gate))
        found: list[tune.ResultGrid] = []
        thread = threading.Thread(target=lambda: found.append(it.fit()))
        thread.start()
        until(lambda: journal(tmp_path / "runs", "e", "TrialStarted"))
        _add_worker(growing, WITHOUT_DASKTUNE)
        client.wait_for_workers(2, timeout=60)
        gate.touch()
        thread.join()
        assert found[0].num_terminated == 4
        # It serves everybody else as before.
        bad = next(w.address for w in growing.scheduler.workers.values() if w.name == "late")
        assert client.submit(sum, [1, 2], workers=[bad], pure=False).result(timeout=30) == 3


def _gated(gate: Path) -> dict[str, Any]:
    return {"gate": str(gate), "x": tune.grid_search([1, 2, 3, 4])}


def waits_for_a_file(config: dict[str, Any]) -> None:
    event = threading.Event()
    while not Path(config["gate"]).exists():
        event.wait(0.01)
    tune.report({"loss": config["x"]})


def _add_worker(cluster: LocalCluster, preload: str) -> None:
    options = {**cluster.new_worker_spec()[next(iter(cluster.new_worker_spec()))]["options"]}
    cluster.worker_spec["late"] = {"cls": Nanny, "options": {**options, "preload": preload}}
    cluster.scale(len(cluster.worker_spec))
