"""A searcher that thinks for long, on real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest
from cluster_kit import PATIENCE, journal, run_config, statuses, until
from distributed import LocalCluster

import dasktune as tune
from dasktune.schedulers import FIFOScheduler
from dasktune.search import Searcher
from dasktune.trial.milestone import EVERY_RESULT

pytestmark = pytest.mark.cluster

STEPS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        yield cluster


class Judging(FIFOScheduler):
    """Has every result judged, and tells when it has seen the last one of a trial."""

    def __init__(self, seen: Event) -> None:
        self.seen = seen

    def __deepcopy__(self, memo: Any) -> Judging:
        return self

    def next_milestones(self, trial: Any) -> Any:
        return EVERY_RESULT

    def on_trial_result(self, trial: Any, result: Any) -> Any:
        if result["training_iteration"] == STEPS:
            self.seen.set()
        return super().on_trial_result(trial, result)

    def __reduce__(self) -> Any:
        return FIFOScheduler, ()


class Thoughtful(Searcher):
    """Has its second suggestion only when somebody else has ended all its work."""

    def __init__(self, gate: Event) -> None:
        super().__init__()
        self.gate = gate
        self.count = 0
        self.threads: set[Any] = set()
        self.waited = True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.threads.add(current_thread())
        self.count += 1
        if self.count == 2:
            self.waited = self.gate.wait(PATIENCE)
        return {"x": self.count}

    def __reduce__(self) -> Any:
        return Thoughtful, (None,)


def steps(config: dict[str, Any]) -> None:
    for _ in range(STEPS):
        tune.report({"loss": config["x"]})


def tuner(place: Path, cluster: LocalCluster, trainable: Any, **how: Any) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(metric="loss", mode="min", **how),
        run_config=run_config(place),
        client=cluster.scheduler_address,
    )


def test_a_searcher_that_thinks_keeps_no_trial_from_being_judged(tmp_path: Path, cluster: LocalCluster):
    judged = Event()
    # The searcher answers only when every result of the first trial was judged, so that it would
    # time out if no result was judged while it thinks.
    searcher, scheduler = Thoughtful(judged), Judging(judged)
    results = tuner(tmp_path, cluster, steps, search_alg=searcher, scheduler=scheduler, num_samples=3).fit()
    assert searcher.waited
    assert statuses(results) == {"TERMINATED"}
    assert len(results) == 3
    assert main_thread() not in searcher.threads
    assert len(searcher.threads) == 1


class Counting(Searcher):
    """Suggests one number after the other."""

    count = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.count += 1
        return {"x": self.count}


def patient(config: dict[str, Any]) -> None:
    """Ends only when there is a third trial, for which there is no place."""
    place = Path(config["place"])
    until(lambda: len(suggested(place)) > 2)
    tune.report({"loss": config["x"]})


def suggested(place: Path) -> list[dict[str, Any]]:
    return [one for one in journal(place, event="Suggested") if one["config"]]


def test_places_are_filled_with_what_was_suggested_before_they_were_free(
    tmp_path: Path, cluster: LocalCluster
):
    results = tune.Tuner(
        patient,
        param_space={"place": str(tmp_path)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", search_alg=Counting(), num_samples=6),
        run_config=run_config(tmp_path),
        client=cluster.scheduler_address,
    ).fit()
    assert statuses(results) == {"TERMINATED"}
    assert len(results) == 6
    events = [one["event"] for one in journal(tmp_path)]
    # Two run and a third one waits before the first of them has ended.
    assert events[: events.index("TrialEnded")].count("Suggested") >= 3
