"""The order and the environment of the ranks of a distributed trial."""

from __future__ import annotations

from typing import Any

import pytest

from dasktune.isolation.ranks.rank_layout import lay_out, rank_environment
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.ranks import RankSettings
from dasktune.trainable.spec import TrialSpec
from dasktune.trial.resources import PlacementGroupFactory


def environments(
    addresses: list[str], bundle: dict[str, float], devices: tuple[Any, ...] = (), **env: str
) -> list[dict[str, str]]:
    """Return the environment of each rank."""
    spec = TrialSpec(
        trial_id="a",
        incarnation=2,
        resources=PlacementGroupFactory([bundle] * len(addresses)),
        storage=Storage("/tmp/runs"),
        trial_dir="a",
        experiment_name="e",
        trial_name="a",
        bundle_workers=tuple(addresses),
        bundle_devices=devices,
        ranks=RankSettings(env=env),
    )
    places = lay_out(addresses)
    return [rank_environment(spec, place, places, port=1234) for place in places]


def test_ranks_are_counted_by_host_and_not_by_worker() -> None:
    addresses = ["tcp://b:1", "tcp://a:1", "tcp://b:2", "tcp://a:1"]
    seen = environments(addresses, {"CPU": 2})
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR")
    assert [[one[name] for name in names] for one in seen] == [
        ["0", "0", "2", "0", "2", "b"],
        ["1", "1", "2", "0", "2", "b"],
        ["2", "0", "2", "1", "2", "b"],
        ["3", "1", "2", "1", "2", "b"],
    ]
    assert {one["MASTER_PORT"] for one in seen} == {"1234"}
    assert {one["OMP_NUM_THREADS"] for one in seen} == {"2"}
    assert {one["TORCHELASTIC_RUN_ID"] for one in seen} == {"a-2"}


def test_ranks_with_a_gpu_each_see_all_gpus_of_the_trial_on_their_host() -> None:
    addresses = ["tcp://a:1", "tcp://b:1", "tcp://a:2"]
    seen = environments(addresses, {"GPU": 1}, (("3",), ("0",), ("1",)))
    # Rank 1 is the third bundle: `cuda:1` is its own.
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["3,1", "3,1", "0"]


def test_ranks_with_several_gpus_see_their_own() -> None:
    seen = environments(["tcp://a:1", "tcp://a:1"], {"GPU": 2}, (("0", "1"), ("2", "3")))
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0,1", "2,3"]


def test_ranks_that_share_a_gpu_see_that_one_once() -> None:
    # The worker of two of them declares more GPUs than it has.
    seen = environments(["tcp://a:1"] * 3, {"GPU": 1}, (("0",), ("1",), ("0",)))
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0", "1", "0"]


def test_ranks_beside_one_with_other_gpus_see_their_own() -> None:
    devices = (("0", "1"), ("2",), None)
    seen = environments(["tcp://a:1"] * 3, {"GPU": 1}, devices)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in seen] == ["0,1", "2", None]


@pytest.mark.parametrize("devices", [(), (None, None)])
def test_ranks_without_gpus_keep_the_variable_of_their_worker(devices: tuple[Any, ...]) -> None:
    seen = environments(["tcp://a:1", "tcp://a:1"], {"CPU": 1}, devices)
    assert not any("CUDA_VISIBLE_DEVICES" in one for one in seen)


def test_own_variables_are_set_on_all_ranks() -> None:
    seen = environments(["tcp://a:1", "tcp://b:1"], {"CPU": 1}, NCCL_DEBUG="INFO")
    assert [one["NCCL_DEBUG"] for one in seen] == ["INFO", "INFO"]
