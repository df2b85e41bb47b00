"""What the page in Dask's dashboard costs scheduler and driver: ``python -m benchmarks.board``.

First an experiment of 1,000 trials runs on and reports 20 results a second, while nobody, one and
three browsers look, which are as many processes that ask as the page does. Then trials report as
fast as they can, while one looks and nobody does, in turns. Processor time is told, too, which a
busy machine changes less than wall time: what the thread that makes the page takes of that of the
driver is what a driver loses that is busy all the time.
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

#: Seconds for each figure, and to settle before.
_SECONDS: Final = 20.0
_SETTLE: Final = 10.0
#: Seconds after which a scheduler takes nobody to look who has not asked for news, and more.
_FORGOTTEN: Final = 8.0
#: How often it is compared how fast results come.
_TURNS: Final = 5

_LOOK: Final = """
import json, sys, time, urllib.request
page, key = sys.argv[1:]
fetch = lambda what: urllib.request.urlopen(page + "~" + what, timeout=60).read()
have = 0
while True:
    told = json.loads(fetch("news?key=" + key))["shown"]
    if told["whole"] and not have:
        have = told["whole"]
        fetch(f"whole?key={key}&number={have}")
    for number in told["changes"]:
        if number > have:
            fetch(f"change?key={key}&number={number}")
            have = number
    time.sleep(1)
"""


def _many(config: dict[str, Any]) -> None:
    import dasktune as tune

    # Most trials are over soon, so that there are many; the last ones go on.
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


class _Site:
    """A cluster of single processes, an experiment on it, and those who look at it."""

    def __init__(self, cluster: Any, client: Any, tuner: Any, results: list[int]) -> None:
        self._client, self._tuner, self._results = client, tuner, results
        self._scheduler = psutil.Process(client.run_on_scheduler(os.getpid))
        port = client.scheduler_info()["services"]["dashboard"]
        self._page = f"http://127.0.0.1:{port}/dasktune"
        self._lookers: list[subprocess.Popen[bytes]] = []

    def let_look(self, count: int) -> None:
        """See to it that so many look, and that what that changes has come about."""
        while len(self._lookers) < count:
            key = self._tuner.dashboard_link.partition("#")[2]
            command = [sys.executable, "-c", _LOOK, self._page, key]
            self._lookers.append(subprocess.Popen(command))
        while len(self._lookers) > count:
            one = self._lookers.pop()
            one.kill()
            one.wait()
        time.sleep(_SETTLE if count else _FORGOTTEN)

    def measure(self) -> dict[str, float]:
        """Look at all processes for a while."""
        driver = psutil.Process()
        before = _cpu(self._scheduler), _cpu(driver), self._results[0], _page_cpu()
        began, waits = time.monotonic(), []
        while time.monotonic() - began < _SECONDS:
            asked = time.perf_counter()
            self._client.sync(self._client.scheduler.identity, n_workers=0)
            waits.append(time.perf_counter() - asked)
            time.sleep(0.05)
        took = time.monotonic() - began
        results = self._results[0] - before[2]
        spent, page = _cpu(driver) - before[1], _page_cpu() - before[3]
        return {
            "pages": len(self._lookers),
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
def _site(trainable: Any, trials: int, ready: int) -> Iterator[_Site]:
    """Run an experiment until it has reported so many results, and for as long as it is needed."""
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
        tempfile.TemporaryDirectory() as place,
        SpecCluster(scheduler=scheduler, workers={0: worker}) as cluster,
        Client(cluster) as client,
    ):
        tuner = tune.Tuner(
            trainable,
            param_space={"i": tune.grid_search(list(range(trials))), "x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=Path(place), name="board", verbose=0, callbacks=[Count()]),
            client=cluster.scheduler_address,
        )
        fitting = threading.Thread(target=tuner.fit, daemon=True)
        fitting.start()
        while results[0] < ready or tuner.dashboard_link is None:
            time.sleep(0.5)
        site = _Site(cluster, client, tuner, results)
        try:
            yield site
        finally:
            site.let_look(0)
            tuner.runner.interrupt()
            fitting.join()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _page_cpu() -> float:
    """Return the processor time of the threads that make pages."""
    names = {one.native_id: one.name for one in threading.enumerate()}
    return sum(
        one.user_time + one.system_time
        for one in psutil.Process().threads()
        if names.get(one.id, "").startswith("dasktune-page")
    )


def main() -> None:
    """Print the figures as JSON lines."""
    with _site(_many, trials=1_000, ready=998 * 20 + 20) as site:
        for looking in (0, 1, 3):
            site.let_look(looking)
            print(json.dumps(site.measure()), flush=True)
    with _site(_fast, trials=2, ready=1_000) as site:
        for turn in range(2 * _TURNS):
            site.let_look(turn % 2)
            print(json.dumps({"flat_out": True, **site.measure()}), flush=True)


if __name__ == "__main__":
    main()
