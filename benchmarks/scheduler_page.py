"""What the page in Dask's dashboard costs the scheduler and the driver.

``python -m benchmarks.scheduler_page`` prints JSON lines. First an experiment of 1,000 trials
reports 20 results a second, with 0, 1 and 3 viewers. A viewer is a process that polls as the page
does. Then trials report as fast as they can, alternately with no viewer and with one. A busy
machine changes processor time less than wall time. A driver that is always busy loses the share of
its processor time that the thread of the page takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import psutil

__all__ = ["main"]

#: Seconds for which each figure is measured, and seconds to settle before.
_MEASURE_S: Final = 20.0
_SETTLE_S: Final = 10.0
#: Seconds after which the scheduler has certainly dropped a viewer that no longer polls.
_VIEWER_TIMEOUT_S: Final = 8.0
#: Rounds of the second comparison, each without and with a viewer.
_ROUNDS: Final = 5

_VIEWER: Final = """
import json, sys, time, urllib.request
page, key = sys.argv[1:]
fetch = lambda what: urllib.request.urlopen(page + "~" + what, timeout=60).read()
last = 0
while True:
    state = json.loads(fetch("news?key=" + key))["shown"]
    if state["whole"] and not last:
        last = state["whole"]
        fetch(f"whole?key={key}&number={last}")
    for number in state["changes"]:
        if number > last:
            fetch(f"change?key={key}&number={number}")
            last = number
    time.sleep(1)
"""


def _many(config: dict[str, Any]) -> None:
    import dasktune as tune

    # Most trials end soon, so that the page has many trials; the last two continue.
    for step in range(100_000_000 if config["i"] >= 998 else 20):
        if config["i"] >= 998:
            time.sleep(0.1)
        tune.report({"loss": config["x"] / (step + 1)})


def _fast(config: dict[str, Any]) -> None:
    import dasktune as tune

    step = 0
    while True:
        step += 1
        tune.report({"loss": config["x"] / step})


class _RunningExperiment:
    """A running experiment on a cluster of separate processes, and the viewers of its page."""

    def __init__(self, cluster: Any, client: Any, tuner: Any, results: list[int]) -> None:
        self._client, self._tuner, self._results = client, tuner, results
        self._scheduler = psutil.Process(client.run_on_scheduler(os.getpid))
        port = client.scheduler_info()["services"]["dashboard"]
        self._page = f"http://127.0.0.1:{port}/dasktune"
        self._viewers: list[subprocess.Popen[bytes]] = []

    def set_viewers(self, count: int) -> None:
        """Start or kill viewers until there are `count`, and wait until the change has settled."""
        while len(self._viewers) < count:
            key = self._tuner.dashboard_link.partition("#")[2]
            command = [sys.executable, "-c", _VIEWER, self._page, key]
            self._viewers.append(subprocess.Popen(command))
        while len(self._viewers) > count:
            one = self._viewers.pop()
            one.kill()
            one.wait()
        time.sleep(_SETTLE_S if count else _VIEWER_TIMEOUT_S)

    def measure(self) -> dict[str, float]:
        """Return what all processes use during `_MEASURE_S` seconds."""
        driver = psutil.Process()
        before = _cpu(self._scheduler), _cpu(driver), self._results[0], _page_cpu()
        began, waits = time.monotonic(), []
        while time.monotonic() - began < _MEASURE_S:
            asked = time.perf_counter()
            self._client.sync(self._client.scheduler.identity, n_workers=0)
            waits.append(time.perf_counter() - asked)
            time.sleep(0.05)
        took = time.monotonic() - began
        results = self._results[0] - before[2]
        spent, page = _cpu(driver) - before[1], _page_cpu() - before[3]
        return {
            "pages": len(self._viewers),
            "scheduler_percent": 100 * (_cpu(self._scheduler) - before[0]) / took,
            "driver_percent": 100 * spent / took,
            "page_percent": 100 * page / took,
            "page_percent_of_driver": 100 * page / spent,
            "driver_us_per_result": 1e6 * spent / max(results, 1),
            "results_per_second": results / took,
            "rpc_median_ms": 1e3 * median(waits),
            "rpc_p95_ms": 1e3 * quantiles(waits, n=20)[-1],
            "load": os.getloadavg()[0],
        }


@contextmanager
def _running_experiment(trainable: Any, trials: int, ready: int) -> Iterator[_RunningExperiment]:
    """Yield an experiment that has reported `ready` results; it runs until the block ends."""
    from distributed import Client, SpecCluster
    from distributed.deploy.subprocess import SubprocessScheduler, SubprocessWorker

    import dasktune as tune

    results = [0]

    class Count(tune.Callback):
        def on_trial_result(self, *args: Any, **kwargs: Any) -> None:
            results[0] += 1

    scheduler = {"cls": SubprocessScheduler, "options": {"scheduler_kwargs": {"dashboard": False}}}
    worker = {"cls": SubprocessWorker, "options": {"worker_kwargs": {"nthreads": 2}}}
    with (
        tempfile.TemporaryDirectory() as directory,
        SpecCluster(scheduler=scheduler, workers={0: worker}) as cluster,
        Client(cluster) as client,
    ):
        tuner = tune.Tuner(
            trainable,
            param_space={"i": tune.grid_search(list(range(trials))), "x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(
                storage_path=Path(directory), name="page", verbose=0, callbacks=[Count()]
            ),
            client=cluster.scheduler_address,
        )
        fitting = threading.Thread(target=tuner.fit, daemon=True)
        fitting.start()
        while results[0] < ready or tuner.dashboard_link is None:
            time.sleep(0.5)
        experiment = _RunningExperiment(cluster, client, tuner, results)
        try:
            yield experiment
        finally:
            experiment.set_viewers(0)
            tuner.runner.interrupt()
            fitting.join()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _page_cpu() -> float:
    """Return the processor time of the threads that compute pages."""
    names = {one.native_id: one.name for one in threading.enumerate()}
    return sum(
        one.user_time + one.system_time
        for one in psutil.Process().threads()
        if names.get(one.id, "").startswith("dasktune-page")
    )


def main() -> None:
    """Print the figures as JSON lines."""
    with _running_experiment(_many, trials=1_000, ready=998 * 20 + 20) as experiment:
        for viewers in (0, 1, 3):
            experiment.set_viewers(viewers)
            print(json.dumps(experiment.measure()), flush=True)
    with _running_experiment(_fast, trials=2, ready=1_000) as experiment:
        for number in range(2 * _ROUNDS):
            experiment.set_viewers(number % 2)
            print(json.dumps({"flat_out": True, **experiment.measure()}), flush=True)


if __name__ == "__main__":
    main()
