"""However a trial ends, scheduler and searcher are notified of its end exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import note, notes, statuses, wait_for_file
from distributed import LocalCluster
from fault_kit import Bout

import dasktune as tune
from dasktune.errors import TrialError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two workers that come back when they are killed."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


class NotHere(Exception):
    """An exception that cannot be made anywhere else."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def meet_its_fate(config: dict[str, Any]) -> None:
    place, fate = Path(config["place"]), config["fate"]
    note(place, fate)
    first = notes(place).count(fate) == 1
    if fate == "kills":
        os._exit(1)
    tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
    if fate == "raises" or (fate == "raises once" and first):
        raise NotHere(fate)
    if fate == "kills once" and first:
        os._exit(1)
    if fate == "is stopped":
        while True:
            tune.report({"step": 2})
    if fate == "waits":
        wait_for_file(place / "never")


#: How each ends.
FATES = {
    "ends": "TERMINATED",
    "raises": "ERROR",
    "raises once": "TERMINATED",
    "kills": "ERROR",
    "kills once": "TERMINATED",
    "is stopped": "TERMINATED",
}


def test_each_end_is_seen_once(cluster: LocalCluster, tmp_path: Path) -> None:
    bout = Bout(
        meet_its_fate,
        tmp_path,
        cluster,
        space={"fate": tune.grid_search(list(FATES))},
        stop={"training_iteration": 9},
        failure_config=tune.FailureConfig(max_failures=1, max_worker_losses=1),
    )
    with bout.fitting() as future:
        results = future.result(timeout=90)
    assert {result.config["fate"]: result.status.value for result in results} == FATES
    bout.assert_seen_once(results)


@pytest.mark.parametrize("fate", ["raises", "kills"])
def test_each_end_is_seen_once_if_the_first_failure_ends_all(
    cluster: LocalCluster, tmp_path: Path, fate: str
) -> None:
    bout = Bout(
        meet_its_fate,
        tmp_path,
        cluster,
        # One beside it, and one that waits for a place.
        space={"fate": tune.grid_search(["waits", fate, "waits"])},
        stop_grace=0.5,
        failure_config=tune.FailureConfig(fail_fast=True, max_worker_losses=0),
    )
    with bout.fitting() as future:
        results = future.result(timeout=60)
    assert statuses(results) == {"ERROR", "TERMINATED"}
    [failed] = [one for one in results if one.status.value == "ERROR"]
    assert failed.config["fate"] == fate
    bout.assert_seen_once(results)


@pytest.mark.parametrize(("fate", "message"), [("raises", "NotHere: raises"), ("kills", "lost its worker")])
def test_what_cannot_be_raised_here_is_text(
    cluster: LocalCluster, tmp_path: Path, fate: str, message: str
) -> None:
    bout = Bout(
        meet_its_fate,
        tmp_path,
        cluster,
        space={"fate": fate},
        failure_config=tune.FailureConfig(fail_fast="raise", max_worker_losses=0),
    )
    with bout.fitting() as future, pytest.raises(TrialError, match=message):
        future.result(timeout=60)
    bout.assert_seen_once(bout.tuner.get_results())
