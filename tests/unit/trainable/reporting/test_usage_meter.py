"""How busy the machine of a trial is."""

from __future__ import annotations

from collections import namedtuple

import psutil
import pytest
from trial_run_kit import Driver

from dasktune.trainable.api.session import report
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.reporting.auto_metrics import UsageMeter

Linux = namedtuple("Linux", "user system idle iowait guest guest_nice")
Other = namedtuple("Other", "user system idle")


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        # Of 10 s, 4 were used by guests, and count as the user's already; 2 waited for a disk.
        (Linux(0, 0, 0, 0, 0, 0), Linux(5, 0, 3, 2, 4, 0), 50.0),
        (Other(10, 10, 10), Other(11, 11, 16), 25.0),
        (Other(10, 10, 10), Other(10, 10, 10), 0.0),
        (Other(10, 10, 10), Other(9, 9, 30), 0.0),
    ],
)
def test_cpus_are_measured_since_the_last_time(monkeypatch, before, after, percent):
    monkeypatch.setattr(psutil, "cpu_times", lambda: before)
    meter = UsageMeter()
    monkeypatch.setattr(psutil, "cpu_times", lambda: after)
    usage = meter()
    assert usage["cpu_util_percent"] == percent
    assert 0 < usage["ram_util_percent"] <= 100
    assert meter()["cpu_util_percent"] == 0


class Step(Trainable):
    def step(self):
        return {"done": True}


@pytest.mark.parametrize("trainable", [lambda config: report({}), Step])
@pytest.mark.parametrize("wanted", [True, False])
def test_results_hold_it_if_the_configuration_asks_for_it(trainable, wanted):
    driver = Driver(trainable, config={"log_sys_usage": wanted})
    driver.end()
    (result,) = driver.results
    assert ("perf" in result.metrics) == wanted
    if wanted:
        assert set(result.metrics["perf"]) == {"cpu_util_percent", "ram_util_percent"}
