"""Trials on a real GPU: devices, fractions, memory after a kill, populations, distributed trials.

They run where PyTorch finds a GPU of NVIDIA, which no other test needs. One GPU is enough: ranks of
a distributed trial share it, as they would share one in a development machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cluster_kit import fitting, journal, note, notes, run_config, statuses, until
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.schedulers import PopulationBasedTraining

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU"),
]

#: Bytes that a trial takes of the GPU's memory, and by how much the use may differ at the end.
TAKEN, TOLERANCE = 8 << 30, 64 << 20


def used() -> int:
    """Return the bytes in use of the first GPU, by all processes."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A worker process with four threads, which finds its GPU by itself."""
    with LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sharing() -> Iterator[LocalCluster]:
    """Two worker processes that declare the one GPU as four, for ranks that share it."""
    with LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=":0", resources={"GPU": 2}
    ) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def memory_comes_back() -> Iterator[None]:
    """Check that a test leaves nothing in the memory of the GPU."""
    before = used()
    yield
    until(lambda: used() <= before + TOLERANCE, timeout=30)


def tuner(
    cluster: LocalCluster, place: Path, trainable: Any, space: Any = None, **options: Any
) -> tune.Tuner:
    """Return a tuner whose trials know a place for notes."""
    settings = options.pop("tune_config", None)
    return tune.Tuner(
        trainable,
        param_space={"place": str(place), **(space or {})},
        tune_config=settings,
        run_config=run_config(place, **options),
        client=cluster,
    )


# Devices


def multiply(config: dict[str, Any]) -> None:
    """Multiply two matrices on the GPU, and compare the product with that of the processor."""
    a, b = torch.ones(64, 64) * 2, torch.eye(64) * config["x"]
    product = (a.to("cuda") @ b.to("cuda")).cpu()
    tune.report(
        {
            "equal": torch.equal(product, a @ b),
            "ids": tune.get_context().get_gpu_ids(),
            "visible": os.environ["CUDA_VISIBLE_DEVICES"],
            "count": torch.cuda.device_count(),
        }
    )


def test_a_worker_finds_its_gpu_and_trials_compute_on_it(cluster: LocalCluster, tmp_path: Path) -> None:
    trainable = tune.with_resources(multiply, {"gpu": 1})
    results = tuner(cluster, tmp_path, trainable, {"x": tune.grid_search([1.0, 2.0, 3.0])}).fit()
    assert not results.errors
    for result in results:
        assert result.metrics["equal"]
        assert result.metrics["count"] == 1
        assert list(result.metrics["ids"]) == [result.metrics["visible"]] == ["0"]


def test_of_two_workers_on_a_host_one_gets_the_gpu(tmp_path: Path) -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        trainable = tune.with_resources(multiply, {"gpu": 1})
        results = tuner(cluster, tmp_path, trainable, {"x": tune.grid_search([1.0, 2.0])}).fit()
        assert not results.errors
        with Client(cluster, set_as_default=False) as client:
            workers = client.scheduler_info()["workers"].values()
        assert sorted(worker["resources"].get("GPU", 0) for worker in workers) == [0, 1]


def meet(config: dict[str, Any]) -> None:
    """Compute beside three other trials on one GPU: none ends before all have begun."""
    place = Path(config["place"])
    block = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    (place / f"here-{config['x']}").touch()
    until(lambda: len(list(place.glob("here-*"))) == 4)
    block += config["x"]
    tune.report({"sum": int(block.sum(dtype=torch.int64)), "ids": tune.get_context().get_gpu_ids()})


def test_four_trials_share_a_gpu(cluster: LocalCluster, tmp_path: Path) -> None:
    trainable = tune.with_resources(meet, {"cpu": 1, "gpu": 0.25})
    results = tuner(cluster, tmp_path, trainable, {"x": tune.grid_search([1, 2, 3, 4])}).fit()
    assert not results.errors
    assert sorted(result.metrics["sum"] >> 28 for result in results) == [1, 2, 3, 4]
    assert {tuple(result.metrics["ids"]) for result in results} == {("0",)}


# Memory


def hold(config: dict[str, Any]) -> None:
    """Take memory of the GPU, say so, and keep it busy for ever."""
    rank = tune.get_context().get_world_rank()
    block = torch.zeros(TAKEN, dtype=torch.uint8, device="cuda")
    note(Path(config["place"]), os.getpid())
    while True:
        block += 1
        torch.cuda.synchronize()
        if config.get("reports") and rank == 0:
            tune.report({"x": 1})


@pytest.mark.parametrize("what", ["trial", "worker"])
def test_a_kill_frees_the_memory_of_the_gpu(cluster: LocalCluster, tmp_path: Path, what: str) -> None:
    before = used()
    options = {"failure_config": tune.FailureConfig(max_failures=0), "stop_grace": 0.5}
    experiment = tuner(cluster, tmp_path, tune.with_resources(hold, {"gpu": 1}), **options)
    with fitting(experiment) as future:
        until(lambda: len(notes(tmp_path)) == 1 and used() >= before + TAKEN)
        trial = psutil.Process(int(notes(tmp_path)[0]))
        os.kill(trial.pid if what == "trial" else trial.ppid(), signal.SIGKILL)
        if what == "worker":
            # Its memory is free, and the trial begins again; kill that process, too.
            until(lambda: not trial.is_running() or trial.status() == psutil.STATUS_ZOMBIE)
            until(lambda: len(notes(tmp_path)) == 2)
            os.kill(int(notes(tmp_path)[1]), signal.SIGKILL)
        assert statuses(future.result(timeout=120)) == {"ERROR"}
    until(lambda: used() <= before + TOLERANCE, timeout=10)


def test_a_trial_that_is_stopped_frees_the_memory_of_the_gpu(cluster: LocalCluster, tmp_path: Path) -> None:
    before = used()
    options = {"tune_config": tune.TuneConfig(time_budget_s=8), "stop_grace": 0.5}
    experiment = tuner(cluster, tmp_path, tune.with_resources(hold, {"gpu": 1}), **options)
    with fitting(experiment) as future:
        until(lambda: len(notes(tmp_path)) == 1 and used() >= before + TAKEN)
        future.result(timeout=120)
    until(lambda: used() <= before + TOLERANCE, timeout=10)


def take(config: dict[str, Any]) -> None:
    """Take a share of the GPU's memory, in several blocks, and leave them where they are."""
    total = torch.cuda.get_device_properties(0).total_memory
    blocks = [torch.zeros(total // 10, dtype=torch.uint8, device="cuda") for _ in range(config["tenths"])]
    tune.report({"blocks": len(blocks), "pid": os.getpid()})


def test_a_trial_without_enough_memory_fails_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    # The process of the one that fails must leave nothing to the next one.
    space = {"tenths": tune.grid_search([7, 12, 8, 11, 7])}
    results = tuner(cluster, tmp_path, tune.with_resources(take, {"gpu": 1}), space).fit()
    assert ["OutOfMemoryError" in str(result.error) for result in results] == [0, 1, 0, 1, 0]
    assert [result.metrics["blocks"] for result in results if result.error is None] == [7, 8, 7]


# Training


def train(config: dict[str, Any]) -> None:
    """Train a network on the GPU, from a checkpoint if there is one."""
    torch.manual_seed(0)
    x = torch.randn(256, 8, device="cuda")
    y = x.sum(1, keepdim=True).tanh()
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    step, loss = 0, torch.tensor(0.0)
    if checkpoint := tune.get_checkpoint():
        state = torch.load(Path(checkpoint.path) / "state.pt", map_location="cuda")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        for group in optimizer.param_groups:
            group["lr"] = config["lr"]
    while step < 20:
        step += 1
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(directory) / "state.pt")
            tune.report(
                {"loss": loss.item(), "step": step},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def test_a_population_trains_on_a_gpu(cluster: LocalCluster, tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="step",
        perturbation_interval=4,
        hyperparam_mutations={"lr": tune.loguniform(1e-5, 1e-2)},
    )
    settings = tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, num_samples=4, seed=0)
    trainable = tune.with_resources(train, {"cpu": 1, "gpu": 0.25})
    space = {"lr": tune.loguniform(1e-5, 1e-2)}
    results = tuner(cluster, tmp_path, trainable, space, tune_config=settings).fit()
    assert not results.errors
    # One that copies a trial which has ended has nothing left to do.
    assert max(result.metrics["step"] for result in results) == 20
    best = results.get_best_result()
    assert best.metrics["loss"] < 0.01
    assert best.checkpoint is not None
    state = torch.load(Path(best.checkpoint.path) / "state.pt", map_location="cpu")
    assert state["step"] == 20
    assert [one for one in journal(tmp_path) if "ExploitTrial" in str(one.get("actions"))]


# Distributed trials


def synchronize(config: dict[str, Any]) -> None:
    """Train one network on all ranks, each with its part of the data."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(config["backend"])
    context = tune.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    own = config["backend"] == "nccl" and torch.cuda.device_count() > 1
    device = torch.device("cuda", context.get_local_rank() if own else 0)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    y = x.sum(1, keepdim=True)
    x, y = x[rank::size].to(device), y[rank::size].to(device)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    step = 0
    if checkpoint := tune.get_checkpoint():
        state = torch.load(Path(checkpoint.path) / f"rank_{rank % config['saved']}.pt", map_location=device)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    try:
        while step < config["steps"]:
            step += 1
            time.sleep(config.get("pause", 0.0))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            with tempfile.TemporaryDirectory() as directory:
                weights = model.module.state_dict()
                torch.save({"model": weights, "step": step}, Path(directory) / f"rank_{rank}.pt")
                tune.report(
                    {
                        "step": step,
                        "weight": model.module.weight.sum().item(),
                        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
                    },
                    checkpoint=tune.Checkpoint.from_directory(directory),
                )
    finally:
        dist.destroy_process_group()


def reference(steps: int, lr: float) -> float:
    """Return the sum of the weights that one process gets on the processor."""
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    y = x.sum(1, keepdim=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return float(model.weight.sum().item())


def weights_of(result: tune.Result, ranks: int) -> list[Any]:
    """Return the weights that each rank has saved."""
    assert result.checkpoint is not None
    states = [
        torch.load(Path(result.checkpoint.path) / f"rank_{rank}.pt", map_location="cpu")
        for rank in range(ranks)
    ]
    return [state["model"]["weight"] for state in states]


@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("gloo", 2), ("gloo", 4)])
def test_ranks_train_one_model_on_a_gpu(
    sharing: LocalCluster, tmp_path: Path, backend: str, ranks: int
) -> None:
    trainable = tune.with_ranks(synchronize, ranks, resources_per_rank={"gpu": 1})
    space = {"backend": backend, "steps": 5, "lr": 0.05, "saved": ranks}
    [result] = tuner(sharing, tmp_path, trainable, space).fit()
    assert result.error is None, result.error
    assert result.metrics["visible"] == "0"
    assert result.metrics["weight"] == pytest.approx(reference(5, 0.05), abs=1e-4)
    first, *others = weights_of(result, ranks)
    assert all(np.array_equal(first, other) for other in others)


def test_another_number_of_ranks_resumes_from_a_checkpoint(sharing: LocalCluster, tmp_path: Path) -> None:
    space = {"backend": "gloo", "steps": 3, "lr": 0.05, "saved": 4}
    four = tune.with_ranks(synchronize, 4, resources_per_rank={"gpu": 1})
    [result] = tuner(sharing, tmp_path / "four", four, space).fit()
    two = tune.with_ranks(synchronize, 2, resources_per_rank={"gpu": 1})
    options = {"restore": result.checkpoint}
    [result] = tuner(sharing, tmp_path / "two", two, {**space, "steps": 6}, **options).fit()
    assert result.metrics["weight"] == pytest.approx(reference(6, 0.05), abs=1e-4)


@pytest.mark.parametrize("what", ["rank", "worker"])
def test_a_killed_rank_takes_all_memory_with_it(sharing: LocalCluster, tmp_path: Path, what: str) -> None:
    before = used()
    trainable = tune.with_ranks(hold, 4, resources_per_rank={"gpu": 1})
    with fitting(tuner(sharing, tmp_path, trainable, stop_grace=0.5)) as future:
        until(lambda: len(notes(tmp_path)) == 4 and used() >= before + 4 * TAKEN)
        ranks = [psutil.Process(int(pid)) for pid in notes(tmp_path)]
        # A rank is a fork of a process of its worker.
        victim = ranks[1].pid if what == "rank" else ranks[1].parents()[1].pid
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        if what == "worker":
            until(lambda: not any(rank.is_running() for rank in ranks))
            until(lambda: len(notes(tmp_path)) == 8)
            os.kill(int(notes(tmp_path)[4]), signal.SIGKILL)
        assert statuses(future.result(timeout=120)) == {"ERROR"}
    until(lambda: used() <= before + TOLERANCE, timeout=10)
    print(f"free {time.monotonic() - began:.1f} s after the kill of a {what}")


def test_with_a_lost_worker_fewer_ranks_train_the_same_model(sharing: LocalCluster, tmp_path: Path) -> None:
    # The nanny starts another worker after some seconds: the trial starts before, and grows after.
    before = used()
    times = {"wait_for_ranks_s": 0, "grow_after_s": 0.5}
    trainable = tune.with_ranks(synchronize, 4, {"gpu": 1}, min_ranks=2, **times)
    space = {"backend": "gloo", "steps": 400, "lr": 0.05, "saved": 1, "pause": 0.05}
    with fitting(tuner(sharing, tmp_path, trainable, space)) as future:
        until(lambda: len(journal(tmp_path, event="ResultReported")) > 3)
        [worker, _] = journal(tmp_path, event="TrialStarted")[0]["ranks"][3]
        with Client(sharing, set_as_default=False) as client:
            [pid] = client.run(os.getpid, workers=[worker]).values()
        os.kill(pid, signal.SIGKILL)
        [result] = future.result(timeout=180)
    assert result.error is None, result.error
    starts = [len(start["ranks"]) for start in journal(tmp_path, event="TrialStarted")]
    assert (starts[0], 2 in starts, starts[-1]) == (4, True, 4)
    assert result.metrics["weight"] == pytest.approx(reference(400, 0.05), abs=1e-3)
    until(lambda: used() <= before + TOLERANCE, timeout=10)
