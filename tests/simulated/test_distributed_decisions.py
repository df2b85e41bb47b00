"""Schedulers decide about trials of several ranks as about trials of one process."""

from __future__ import annotations

from typing import Any

import pytest
from test_replay import CASES, LOSE, Recorder, configs, curve

import dasktune as tune
from dasktune.testing import simulate

#: All schedulers but those that change resources: what they decide depends on the free CPUs.
SCHEDULERS = [name for name, search in CASES if search == "limited" and not name.startswith("resizing")]


def train(config: dict[str, Any]) -> None:
    """Stand for a function; `curve` is what is simulated."""


def decided(scheduler: str, ranks: int) -> list[tuple[Any, ...]]:
    """Simulate an experiment with four places; return what was decided about which trial."""
    store = Recorder()
    simulate(
        curve,
        **configs(scheduler, "limited"),
        resources=tune.with_ranks(train, ranks).resources,
        workers=[2 * ranks, 2 * ranks],
        start_overhead=1.5,
        lose=LOSE,
        store=store,
    )
    bundles = {
        len(action["resources"]["bundles"])
        for record in store.records
        for action in record.get("actions", ())
        if action["do"] == "StartTrial"
    }
    assert bundles == {ranks}
    return [
        (record["time"], action["do"], action.get("trial_id"), action.get("reason"), action.get("config"))
        for record in store.records
        for action in record.get("actions", ())
    ]


@pytest.mark.usefixtures("quick_bandit")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_decisions_do_not_depend_on_the_number_of_ranks(scheduler: str) -> None:
    assert decided(scheduler, 2) == decided(scheduler, 1)
