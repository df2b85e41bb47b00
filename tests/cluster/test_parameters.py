"""Large bound objects: one copy for each worker, wherever and whenever it comes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_kit import (
    Fleet,
    assert_clean,
    driver_settings,
    fitting,
    histories,
    kill,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)
from distributed import Client, LocalCluster

import dasktune as tune

pytestmark = pytest.mark.cluster

#: 8 MB, of which no sum is right by chance.
NUMBERS = np.arange(1_000_000.0)


class Corpus:
    """Data that notes down where it is made of a pickle."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.numbers = NUMBERS

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        note(self.place, f"made {os.getpid()}")


def look(config: dict[str, Any], corpus: Corpus, numbers: Any, small: Any) -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "objects": [id(corpus), id(numbers)],
        "sum": float(corpus.numbers.sum()),
        "writeable": [one.flags.writeable for one in (corpus.numbers, numbers, small)],
    }


def test_many_trials_share_one_copy_on_each_worker(tmp_path: Path, pair: LocalCluster) -> None:
    bound = tune.with_parameters(look, corpus=Corpus(tmp_path), numbers=NUMBERS * 2, small=np.zeros(3))
    results = tune.Tuner(
        bound,
        tune_config=tune.TuneConfig(num_samples=24),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    rows = [result.history[0] for result in results]
    processes = {row["process"] for row in rows}
    assert len(processes) == 2
    assert len({(row["process"], *row["objects"]) for row in rows}) == 2
    assert sorted(notes(tmp_path)) == sorted(f"made {process}" for process in processes)
    assert {row["sum"] for row in rows} == {NUMBERS.sum()}
    assert all(row["writeable"] == [False, False, True] for row in rows)
    with Client(pair, set_as_default=False) as client:
        assert_clean(client)
        # A worker deletes what it holds when the scheduler tells it, which is a little later.
        until(lambda: not any(client.run(lambda dask_worker: list(dask_worker.data)).values()))


class Summing(tune.Trainable):
    def setup(self, config: dict[str, Any], numbers: Any = None, more: Any = None) -> None:
        self.total = float(numbers.sum() + more.sum())

    def step(self) -> dict[str, Any]:
        return {"sum": self.total, "done": True}


def test_a_class_gets_what_was_bound_to_it_in_two_steps(tmp_path: Path, pair: LocalCluster) -> None:
    bound = tune.with_parameters(tune.with_parameters(Summing, numbers=NUMBERS), more=NUMBERS * 2)
    results = tune.Tuner(
        bound,
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=run_config(tmp_path),
        client=pair,
    ).fit()
    assert histories(results, "sum") == [[3 * NUMBERS.sum()]] * 3


def gated(config: dict[str, Any], numbers: Any) -> dict[str, Any]:
    place = Path(config["place"])
    note(place, f"{config['number']} on {os.getpid()}")
    wait_for_file(place / f"gate-{config['number']}")
    return {"sum": float(numbers.sum())}


def gated_tuner(place: Path, fleet: Fleet, count: int) -> tune.Tuner:
    return tune.Tuner(
        tune.with_parameters(gated, numbers=NUMBERS),
        param_space={"place": str(place), "number": tune.grid_search(list(range(count)))},
        run_config=run_config(place),
        client=fleet.address,
    )


@pytest.mark.slow
def test_a_late_worker_gets_them_and_the_loss_of_the_only_copy_is_made_good(
    tmp_path: Path, fleet: Fleet
) -> None:
    fleet.keep(1)
    with fitting(gated_tuner(tmp_path, fleet, 2)) as future:
        until(lambda: len(notes(tmp_path)) == 1)
        first = fleet.workers[0]
        kill(first)
        second = fleet.add_worker()
        # Only the driver has the object now.
        until(lambda: f"0 on {second.pid}" in notes(tmp_path))
        late = fleet.add_worker()
        until(lambda: f"1 on {late.pid}" in notes(tmp_path))
        (tmp_path / "gate-0").touch()
        (tmp_path / "gate-1").touch()
        results = future.result()
    assert histories(results, "sum") == [[NUMBERS.sum()]] * 2
    with fleet.client() as client:
        assert_clean(client)


@pytest.mark.slow
def test_a_worker_that_hangs_with_the_only_copy_delays_no_trial(tmp_path: Path, fleet: Fleet) -> None:
    fleet.keep(1)
    with driver_settings(broadcast_timeout=1.0), fitting(gated_tuner(tmp_path, fleet, 2)) as future:
        until(lambda: len(notes(tmp_path)) == 1)
        hung = fleet.workers[0]
        hung.send_signal(signal.SIGSTOP)
        try:
            late = fleet.add_worker()
            until(lambda: f"1 on {late.pid}" in notes(tmp_path))
        finally:
            hung.send_signal(signal.SIGCONT)
        (tmp_path / "gate-0").touch()
        (tmp_path / "gate-1").touch()
        results = future.result()
    assert histories(results, "sum") == [[NUMBERS.sum()]] * 2
    with fleet.client() as client:
        assert_clean(client)
