"""What the dashboard costs and how quick it is: ``python -m benchmarks.dashboard``.

Pages: a synthetic experiment of 10,000 trials with 100 results each is written as a journal, and
goes on while it is looked at; its dashboard is the command line's, in a process of its own. Work:
what each figure of it takes of a processor. Runs: a real experiment on a local cluster, with the
dashboard open and without, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from bokeh.document import Document
from bokeh.protocol import Protocol
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from benchmarks import trainables
from benchmarks._browser import (
    await_the_journal,
    browser,
    complaints,
    go_to,
    open_dashboard,
    received,
    titles,
)
from benchmarks._measure import Figures, Size, load, machine
from benchmarks._report import spread, table
from benchmarks.experiments import local_cluster, run, warm_up
from benchmarks.traffic import received_bytes
from dasktune.dashboard.figures.figure_spec import FigureSpec
from dasktune.dashboard.server.diff import RenderedFigure
from dasktune.dashboard.server.experiment_source import ExperimentFolder
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.pages import PageSection, experiment_pages
from dasktune.dashboard.server.viewer import Viewer
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs.storage import Storage

__all__ = ["pages", "runs", "work"]

_WORKERS = 16
_RATE_OF_RESULTS = "steady_results_per_s"
#: Results a second, while it goes on.
_RATE = 500
#: Seconds for which each thing is looked at.
_WHILE = 20.0
#: Seconds for an answer, however busy the machine is.
_PATIENCE = 1_800


class _Synthetic:
    """An experiment that only its journal knows."""

    def __init__(self, path: Path, trials: int, results: int) -> None:
        self._store = ExperimentStore(Storage(path))
        self._store.create({"name": "synthetic", "metric": "loss", "mode": "min", "total_trials": trials})
        self._store.begin()
        self._random, self._now = random.Random(0), 0.0
        self._results = results
        #: Of those that run: the name, what it will come to, and how far it is.
        self._running: list[list[Any]] = []
        self._count = 0

    def _begin(self) -> None:
        draw, name = self._random, f"5f3c1_{self._count:05d}"
        config = {
            "lr": 10 ** draw.uniform(-5, 0),
            "depth": draw.randint(1, 12),
            "dropout": draw.random(),
            "optimizer": draw.choice(["adam", "sgd", "lion"]),
        }
        self._tell("Suggested", name, status="PENDING", config=config)
        worker = f"tcp://10.0.0.{self._count % _WORKERS}:40000"
        self._tell("TrialStarted", name, status="RUNNING", worker=worker)
        goal = abs(config["dropout"] - 0.3) + 0.1 * config["depth"] * draw.random()
        self._running.append([name, goal, 0])
        self._count += 1

    def _tell(self, event: str, name: str, **more: Any) -> None:
        self._store.append({"event": event, "trial_id": name, "time": self._now, **more})

    def go_on(self, results: int) -> None:
        """Write so many results, and what happens meanwhile."""
        while len(self._running) < _WORKERS:
            self._begin()
        for _ in range(results):
            self._now += 1 / _RATE
            at = self._random.randrange(_WORKERS)
            name, goal, step = self._running[at]
            step += 1
            metrics = {
                "loss": goal + 1 / step + 0.02 * self._random.random(),
                "accuracy": 1 - goal,
                "training_iteration": step,
                "time_total_s": 0.1 * step,
            }
            self._tell("ResultReported", name, status="RUNNING", metrics=metrics)
            self._running[at][2] = step
            if step == self._results:
                self._tell("TrialEnded", name, status="TERMINATED")
                del self._running[at]
                self._begin()
        self._store.commit(force=True)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Go on meanwhile, in steps of a quarter of a second."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(0.25):
                self.go_on(_RATE // 4)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def close(self) -> None:
        self._store.close()


@contextmanager
def _served(path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Give the URL and the process of a dashboard."""
    command = [sys.executable, "-m", "dasktune", "dashboard", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.kill()


async def _look(url: str, until: asyncio.Event) -> None:
    """Look at a dashboard without a browser: let the server tell what it tells."""
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=_PATIENCE).read().decode())
    token = re.search(r'"token":"([^"]+)"', page)
    if token is None:
        raise RuntimeError("the page has no token")
    request = HTTPRequest(
        f"{url.replace('http', 'ws')}ws",
        headers={"Origin": url.rstrip("/")},
        request_timeout=_PATIENCE,
    )
    socket = await websocket_connect(request, subprotocols=["bokeh", token[1]], max_message_size=1 << 30)
    ending = asyncio.create_task(until.wait())
    while not until.is_set():
        message = asyncio.ensure_future(socket.read_message())
        await asyncio.wait({message, ending}, return_when=asyncio.FIRST_COMPLETED)
    socket.close()


def _load_of(process: psutil.Process, seconds: float) -> float:
    """Return the share of a core that a process takes meanwhile."""
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def _watched(url: str, process: psutil.Process, viewers: int) -> tuple[float, float]:
    """Return the server's share of a core and its bytes a second with so many who look."""

    async def watch() -> tuple[float, float]:
        until = asyncio.Event()
        looking = [asyncio.create_task(_look(url, until)) for _ in range(viewers)]
        await asyncio.sleep(10.0)  # they have been sent what there is
        with received_bytes() as count:
            busy = await asyncio.to_thread(_load_of, process, _WHILE)
            rate = count() / _WHILE
        until.set()
        await asyncio.gather(*looking)
        return busy, rate

    return asyncio.run(watch())


def _opened(driver: Any, url: str) -> float:
    began = time.monotonic()
    open_dashboard(driver, url)
    seconds = time.monotonic() - began
    driver.get("about:blank")
    return seconds


def pages(trials: int, results: int) -> Iterator[tuple[str, str]]:
    """Yield what was looked at, and what it came to."""
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        path = Path(directory, "synthetic")
        synthetic = _Synthetic(path, trials, results)
        synthetic.go_on((trials - _WORKERS) * results)
        with _served(path) as (url, process), browser() as driver:
            began = time.monotonic()
            yield "cold journal: click to ready", f"{_opened(driver, url):.1f} s"
            open_dashboard(driver, url)
            await_the_journal(driver)
            yield "all of it read and shown", f"{time.monotonic() - began:.0f} s"
            yield "memory of the server", f"{process.memory_info().rss / 2**20:,.0f} MB"
            warm = [_opened(driver, url) for _ in range(3)]
            yield "loaded: click to ready", f"{spread(warm)} s"
            with synthetic.going_on():
                yield "nobody looks", _told(_load_of(process, _WHILE))
                yield from _by_page(driver, url, process)
                one = [_watched(url, process, 1) for _ in range(2)]
                yield "one viewer", _told(median(b for b, _ in one), median(r for _, r in one))
                busy, rate = _watched(url, process, 10)
                yield "ten viewers", _told(busy, rate)
        synthetic.close()


def _by_page(driver: Any, url: str, process: psutil.Process) -> Iterator[tuple[str, str]]:
    open_dashboard(driver, url)
    for number, title in enumerate(titles(driver)):
        began = time.monotonic()
        go_to(driver, number)
        shown = time.monotonic() - began
        time.sleep(5.0)
        received(driver)
        busy = _load_of(process, _WHILE)
        yield f"page {title}, first after {shown:.1f} s", _told(busy, received(driver) / _WHILE)
    driver.get("about:blank")
    if told := complaints(driver):
        raise RuntimeError(f"the browser complains: {told}")


def _told(busy: float, rate: float | None = None) -> str:
    return f"{busy:.1%} of a core" + ("" if rate is None else f", {rate / 1e3:,.1f} kB/s")


def work(trials: int, results: int) -> Iterator[tuple[str, str]]:
    """Yield how much processor time each part takes when 200 results have come, in this process.

    Unlike the other figures these do not depend on what else the machine does.
    """
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        path = Path(directory, "synthetic")
        synthetic = _Synthetic(path, trials, results)
        synthetic.go_on((trials - _WORKERS) * results)
        live = ExperimentFolder(Storage(path)).find("")
        if live is None:
            raise RuntimeError("there is no experiment")
        live.viewers = 1
        yield "taking the journal in", f"{_processor(lambda: _take_in(live)):.1f} s"
        for page in experiment_pages(live):
            for part in page.sections:
                rendered = RenderedFigure(part.make())
                spent = []
                for _ in range(3):
                    synthetic.go_on(200)
                    _take_in(live)
                    began = time.process_time()
                    rendered = _redrawn(part, rendered)
                    spent.append(1e3 * (time.process_time() - began))
                yield f"{page.title}: {part.name}", f"{spread(spent)} ms"
        for viewers in (1, 10):
            spent, sent = _moments(live, synthetic, viewers)
            told = f"{spread(spent)} ms, {spread(sent)} kB"
            yield f"a moment of the first page for {viewers}, records included", told
        synthetic.close()


def _moments(live: LiveExperiment, synthetic: _Synthetic, viewers: int) -> tuple[list[float], list[float]]:
    """Return milliseconds and kilobytes of five moments, each with a second of results."""
    documents = [Document() for _ in range(viewers)]
    those = [Viewer(live, document) for document in documents]
    events: list[list[Any]] = [[] for _ in documents]
    for document, told in zip(documents, events, strict=True):
        document.on_change(told.append)
    spent, sent = [], []
    for _ in range(6):
        synthetic.go_on(_RATE)
        size, began = 0, time.process_time()
        _take_in(live)
        for viewer, told in zip(those, events, strict=True):
            viewer.update()
            if told:
                patch = Protocol().create("PATCH-DOC", list(told))
                size += len(patch.content_json) + sum(len(one.to_bytes()) for one in patch.buffers)
                told.clear()
        spent.append(1e3 * (time.process_time() - began))
        sent.append(size / 1e3)
        time.sleep(2.0)  # a rendered that took long is made again after a while
    return spent[1:], sent[1:]


def _processor(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _take_in(live: LiveExperiment) -> None:
    while live.poll():
        pass


def _redrawn(part: PageSection, earlier: RenderedFigure) -> RenderedFigure:
    made = part.make()
    rendered = earlier.updated(made) if isinstance(made, FigureSpec) else None
    rendered = rendered or RenderedFigure(made)
    rendered.changes_from(earlier)
    return rendered


def runs(count: int) -> list[tuple[str, list[Figures]]]:
    """Return figures of real runs without the dashboard, with it, and with somebody who looks."""
    ways: dict[str, list[Figures]] = {
        "without": [],
        "open, nobody looks": [],
        "open, one looks": [],
    }
    size = Size(trials=4, steps=100_000)
    with local_cluster() as cluster:
        warm_up(cluster)
        for _ in range(count):
            for way, found in ways.items():
                dashboard = False if way == "without" else _free_port()
                with _looking(dashboard if way.endswith("looks") and "one" in way else 0):
                    timeline = run(cluster, trainables.steps, size, dashboard=dashboard)
                found.append(timeline.figures())
    return list(ways.items())


def _free_port() -> int:
    import socket

    with socket.create_server(("localhost", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _looking(port: int) -> Iterator[None]:
    """Have a process of its own look at a dashboard that is still to come."""
    if not port:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.dashboard", "--look", str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def _look_at(port: int) -> None:
    """Look at the dashboard of a driver from when it is there."""
    url = f"http://localhost:{port}/"
    while True:
        try:
            asyncio.run(_look(url, asyncio.Event()))
        except OSError:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--results", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=["pages", "runs", "work"])
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.look:
        _look_at(arguments.look)
    print(json.dumps({**machine(), "load": load()}, indent=2))
    if arguments.only in (None, "work"):
        for what, told in work(arguments.trials, arguments.results):
            print(f"{what}: {told}", flush=True)
    if arguments.only in (None, "pages"):
        print(f"\n{arguments.trials:,} trials of {arguments.results} results, then {_RATE}/s\n")
        for what, told in pages(arguments.trials, arguments.results):
            print(f"{what}: {told}", flush=True)
    if arguments.only in (None, "runs"):
        found = runs(arguments.runs)
        bare = [one[_RATE_OF_RESULTS] for one in found[0][1]]
        rows = [
            (
                way,
                spread(rates := [one[_RATE_OF_RESULTS] for one in figures]),
                spread([rate / other for rate, other in zip(rates, bare, strict=True)]),
                spread([one["driver_cpu_us_per_result"] for one in figures]),
            )
            for way, figures in found
        ]
        head = (
            "dashboard",
            "results/s",
            "of the same round without",
            "driver's CPU, us per result",
        )
        print("\n" + table(head, rows))


if __name__ == "__main__":
    main()
