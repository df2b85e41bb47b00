"""PyTorch in distributed trials: real trainings with DDP and FSDP that are killed and resumed.

Run with PyTorch installed: ``pytest tests/cluster/test_torch_on_ranks.py``. The trainings use CUDA
where it is available. If each rank has a GPU, they use NCCL; if ranks share one, DDP uses Gloo with
the tensors on the GPU, and FSDP stays on the CPU, because Gloo lacks its collectives for CUDA.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import assert_clean, journal, run_config, statuses, until
from distributed import Client, LocalCluster

import dasktune as tune
from dasktune.integration.torch import (
    load_sharded_state,
    load_state,
    report_sharded_state,
    report_state,
)

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One worker process, so that each experiment imports PyTorch once."""
    with LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address=":0") as cluster:
        yield cluster
        with Client(cluster, set_as_default=False) as client:
            until(lambda: len(client.scheduler_info()["workers"]) == 1)
            assert_clean(client)


def join(*, shares_gpu: bool) -> Any:
    """Join the process group, and return the device of this rank.

    `shares_gpu` says whether ranks may share a GPU.
    """
    import torch
    from torch import distributed

    context = tune.get_context()
    gpus = torch.cuda.device_count()
    has_own = gpus >= context.get_local_world_size()
    distributed.init_process_group("nccl" if has_own else "gloo")
    if not gpus or not (has_own or shares_gpu):
        return torch.device("cpu")
    device = torch.device("cuda", context.get_local_rank() if has_own else 0)
    torch.cuda.set_device(device)
    return device


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def data() -> Any:
    import torch

    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=numbers)
    return x, x.sin().sum(1, keepdim=True)


def own_part(device: Any) -> Any:
    """Return the rows of this rank. All ranks have equally many."""
    context = tune.get_context()
    rows = slice(context.get_world_rank(), None, context.get_world_size())
    return tuple(one[rows].to(device) for one in data())


def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    """Take a step down the gradient of the whole batch, and return its loss."""
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def mean(value: Any) -> float:
    """Return the mean of a value over the ranks."""
    from torch import distributed

    distributed.all_reduce(value)
    return float(value / distributed.get_world_size())


def alone() -> tuple[list[float], Any]:
    """Return the losses and the weights of a training in one process."""
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = [float(step(model, optimizer, *data())) for _ in range(STEPS)]
    return losses, model.state_dict()


def die_once(config: dict[str, Any], at: int) -> None:
    """Kill rank 1 when it reaches step 3 for the first time."""
    mark = Path(config["place"], "killed")
    if at == 3 and config["kill"] and tune.get_context().get_world_rank() == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def with_ddp(config: dict[str, Any]) -> None:
    """Train with DDP; rank 0 saves."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = join(shares_gpu=True)
    model = network().to(device)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.05)
    parts = {"model": model, "optimizer": optimizer}
    begun = load_state(tune.get_checkpoint(), **parts, step=0)["step"]
    x, y = own_part(device)
    for number in range(begun, STEPS):
        die_once(config, number)
        loss = mean(step(wrapped, optimizer, x, y))
        report_state({"loss": loss, "device": device.type}, **parts, step=number + 1)


def with_fsdp(config: dict[str, Any]) -> None:
    """Train with FSDP; each rank saves its shards."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = join(shares_gpu=False)
    model = network().to(device)
    mesh = init_device_mesh(device.type, (tune.get_context().get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    state = load_sharded_state(tune.get_checkpoint(), model, optimizer, step=0)
    x, y = own_part(device)
    for number in range(state["step"], STEPS):
        die_once(config, number)
        loss = mean(step(model, optimizer, x, y))
        metrics = {"loss": loss, "device": device.type, "first": number == state["step"]}
        report_sharded_state(metrics, model, optimizer, step=number + 1)


def losses_of(place: Path) -> list[float]:
    """Return the loss of each recorded result."""
    return [one["metrics"]["loss"] for one in journal(place, event="ResultReported")]


def trained(
    cluster: LocalCluster, place: Path, function: Any, ranks: int = 2, *, kill: bool = True, **options: Any
) -> Any:
    """Return the result of the only trial."""
    options = {"preload": ("torch",), "start_timeout_s": 200, **options}
    results = tune.Tuner(
        tune.with_ranks(function, ranks, **options),
        param_space={"place": str(place), "kill": kill},
        run_config=run_config(place, failure_config=tune.FailureConfig(max_failures=1)),
        client=cluster,
    ).fit()
    assert statuses(results) == {"TERMINATED"}, results.errors
    return results[0]


@pytest.mark.parametrize("preload", [(), ("torch",)], ids=["forked", "preloaded"])
def test_ddp_computes_what_one_process_would_also_after_a_kill(
    cluster: LocalCluster, tmp_path: Path, preload: tuple[str, ...]
) -> None:
    result = trained(cluster, tmp_path, with_ddp, preload=preload)
    losses, weights = alone()
    assert (tmp_path / "killed").exists()
    assert losses_of(tmp_path) == pytest.approx(losses, rel=1e-4)
    assert result.metrics["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    model = network()
    assert load_state(result.checkpoint, model=model) == {}
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=1e-4)


def test_fsdp_computes_what_one_process_would_also_after_a_kill(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    result = trained(cluster, tmp_path, with_fsdp)
    losses, weights = alone()
    assert losses_of(tmp_path) == pytest.approx(losses, rel=1e-4)
    # Each rank has saved a part.
    with result.checkpoint.as_directory() as directory:
        shards = sorted(path.name for path in Path(directory).glob("*.distcp"))
    assert [name.split("_")[2] for name in shards] == ["0", "1"]
    # One process without a process group reads them all.
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    assert load_sharded_state(result.checkpoint, model, optimizer, step=0) == {"step": STEPS}
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=1e-4)


def test_other_numbers_of_ranks_read_the_shards(cluster: LocalCluster, tmp_path: Path) -> None:
    def first_half(config: dict[str, Any]) -> None:
        with_fsdp_until(config, STEPS // 2)

    places = [tmp_path / "two", tmp_path / "four"]
    for place in places:
        place.mkdir()
    half = trained(cluster, places[0], first_half, kill=False)
    with half.checkpoint.as_directory() as directory:
        config_of_rest = {"from": str(directory)}

        def rest(config: dict[str, Any]) -> None:
            with_fsdp_until({**config, **config_of_rest}, STEPS)

        trained(cluster, places[1], rest, 4, kill=False)
    assert losses_of(places[0]) + losses_of(places[1]) == pytest.approx(alone()[0], rel=1e-4)


def with_fsdp_until(config: dict[str, Any], end: int) -> None:
    """Train with FSDP up to a step, from a checkpoint of another trial if there is one."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = join(shares_gpu=False)
    model = network().to(device)
    fully_shard(model, mesh=init_device_mesh(device.type, (tune.get_context().get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    given = tune.Checkpoint.from_directory(config["from"]) if "from" in config else None
    begun = load_sharded_state(given, model, optimizer, step=0)["step"]
    x, y = own_part(device)
    for number in range(begun, end):
        loss = mean(step(model, optimizer, x, y))
        report_sharded_state({"loss": loss}, model, optimizer, step=number + 1)


def save_by_hand(config: dict[str, Any]) -> None:
    """Save with `torch.distributed.checkpoint` itself, as users who have it do."""
    import torch
    import torch.distributed.checkpoint as dcp

    join(shares_gpu=False)
    value = torch.full((4,), float(tune.get_context().get_world_rank()))
    with tempfile.TemporaryDirectory() as directory:
        dcp.save({f"rank-{tune.get_context().get_world_rank()}": value}, checkpoint_id=directory)
        tune.report({"loss": 0.0}, checkpoint=tune.Checkpoint.from_directory(directory))


def test_a_checkpoint_of_dcp_itself_has_the_files_of_all_ranks(cluster: LocalCluster, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    result = trained(cluster, tmp_path, save_by_hand, kill=False)
    state = {f"rank-{rank}": torch.zeros(4) for rank in range(2)}
    with (
        result.checkpoint.as_directory() as directory,
        pytest.warns(UserWarning, match=r"torch\.distributed is disabled"),
    ):
        dcp.load(state, checkpoint_id=directory, no_dist=True)
    assert [float(one[0]) for one in state.values()] == [0.0, 1.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fsdp_trains_on_a_gpu_of_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    result = trained(cluster, tmp_path, with_fsdp, 1, kill=False)
    assert result.metrics["device"] == "cuda"
    assert losses_of(tmp_path) == pytest.approx(alone()[0], rel=1e-3)


INITIALISES = "import torch\ntorch.zeros(1, device='cuda')\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_preload_that_initialises_cuda_is_not_forked(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy_module.py").write_text(INITIALISES)
    options: dict[str, Any] = {
        "env": {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    }
    result = trained(cluster, tmp_path, with_ddp, kill=False, preload=("greedy_module",), **options)
    assert result.metrics["device"] == "cuda"
