"""What the dashboard costs and how fast it is: ``python -m benchmarks.dashboard``.

Pages: the journal of a synthetic experiment of 10,000 trials with 100 results each grows while
viewers have its dashboard open. ``dasktune dashboard`` serves it in a separate process. Work: the
processor time of each figure. Runs: a real experiment on a local cluster, alternately without the
dashboard, with it, and with a viewer.
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
    browser,
    first_paint_s,
    open_dashboard,
    open_page,
    page_errors,
    titles,
    wait_for_journal,
    websocket_bytes,
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
#: Results per second while the journal grows.
_RATE = 500
#: Seconds for which each figure is measured.
_MEASURE_S = 20.0
#: Seconds to wait for a response, however busy the machine is.
_TIMEOUT_S = 1_800


class _SyntheticExperiment:
    """An experiment that consists of nothing but its journal."""

    def __init__(self, path: Path, trials: int, results: int) -> None:
        self._store = ExperimentStore(Storage(path))
        self._store.create({"name": "synthetic", "metric": "loss", "mode": "min", "total_trials": trials})
        self._store.begin()
        self._random, self._now = random.Random(0), 0.0
        self._results = results
        #: Of each running trial: its name, its final loss, and its last iteration.
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
        self._append("Suggested", name, status="PENDING", config=config)
        worker = f"tcp://10.0.0.{self._count % _WORKERS}:40000"
        self._append("TrialStarted", name, status="RUNNING", worker=worker)
        goal = abs(config["dropout"] - 0.3) + 0.1 * config["depth"] * draw.random()
        self._running.append([name, goal, 0])
        self._count += 1

    def _append(self, event: str, name: str, **more: Any) -> None:
        # All fields of the driver's records: one that lacks any is malformed, and is left out.
        more = {"time": self._now, "incarnation": 1, "reason": "", **more}
        self._store.append({"event": event, "trial_id": name, **more})

    def add_results(self, results: int) -> None:
        """Append `results` results to the journal, with the starts and ends of trials."""
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
            self._append("ResultReported", name, status="RUNNING", metrics=metrics)
            self._running[at][2] = step
            if step == self._results:
                self._append("TrialEnded", name, status="TERMINATED")
                del self._running[at]
                self._begin()
        self._store.commit(force=True)

    @contextmanager
    def adding_results(self) -> Iterator[None]:
        """Append results in a thread, every quarter of a second, until the block ends."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(0.25):
                self.add_results(_RATE // 4)

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
    """Serve a dashboard in a separate process; yield its URL and the process."""
    command = [sys.executable, "-m", "dasktune", "dashboard", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.kill()


async def _view(url: str, until: asyncio.Event) -> None:
    """Open a dashboard without a browser, and receive its updates until the event is set."""
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=_TIMEOUT_S).read().decode())
    token = re.search(r'"token":"([^"]+)"', page)
    if token is None:
        raise RuntimeError("the page has no token")
    request = HTTPRequest(
        f"{url.replace('http', 'ws')}ws",
        headers={"Origin": url.rstrip("/")},
        request_timeout=_TIMEOUT_S,
    )
    socket = await websocket_connect(request, subprotocols=["bokeh", token[1]], max_message_size=1 << 30)
    ending = asyncio.create_task(until.wait())
    while not until.is_set():
        message = asyncio.ensure_future(socket.read_message())
        await asyncio.wait({message, ending}, return_when=asyncio.FIRST_COMPLETED)
    socket.close()


def _load_of(process: psutil.Process, seconds: float) -> float:
    """Return the share of a core that a process uses during `seconds`."""
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


def _usage_with_viewers(url: str, process: psutil.Process, viewers: int) -> tuple[float, float]:
    """Return the server's share of a core and its bytes per second with `viewers` viewers."""

    async def watch() -> tuple[float, float]:
        until = asyncio.Event()
        viewing = [asyncio.create_task(_view(url, until)) for _ in range(viewers)]
        await asyncio.sleep(10.0)  # all viewers have received the page
        with received_bytes() as count:
            busy = await asyncio.to_thread(_load_of, process, _MEASURE_S)
            rate = count() / _MEASURE_S
        until.set()
        await asyncio.gather(*viewing)
        return busy, rate

    return asyncio.run(watch())


def _opened(driver: Any, url: str) -> tuple[float, float]:
    """Open the dashboard; return the seconds until something is shown, and until all is drawn."""
    began = time.monotonic()
    open_dashboard(driver, url)
    seconds = time.monotonic() - began
    painted = first_paint_s(driver)
    driver.get("about:blank")
    return painted, seconds


def pages(trials: int, results: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each figure."""
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        path = Path(directory, "synthetic")
        synthetic = _SyntheticExperiment(path, trials, results)
        synthetic.add_results((trials - _WORKERS) * results)
        with _served(path) as (url, process), browser() as driver:
            began = time.monotonic()
            yield "cold journal: click to ready", f"{_opened(driver, url)[1]:.1f} s"
            open_dashboard(driver, url)
            wait_for_journal(driver)
            yield "the journal read and shown", f"{time.monotonic() - began:.0f} s"
            yield "memory of the server", f"{process.memory_info().rss / 2**20:,.0f} MB"
            painted, ready = zip(*(_opened(driver, url) for _ in range(7)), strict=True)
            yield "loaded: click to the first paint", f"{spread(painted)} s"
            yield "loaded: click to ready", f"{spread(ready)} s"
            with synthetic.adding_results():
                yield "no viewer", _usage_text(_load_of(process, _MEASURE_S))
                yield from _by_page(driver, url, process)
                one = [_usage_with_viewers(url, process, 1) for _ in range(2)]
                yield "one viewer", _usage_text(median(b for b, _ in one), median(r for _, r in one))
                busy, rate = _usage_with_viewers(url, process, 10)
                yield "ten viewers", _usage_text(busy, rate)
        synthetic.close()


def _by_page(driver: Any, url: str, process: psutil.Process) -> Iterator[tuple[str, str]]:
    open_dashboard(driver, url)
    for number, title in enumerate(titles(driver)):
        began = time.monotonic()
        open_page(driver, number)
        shown = time.monotonic() - began
        time.sleep(5.0)
        websocket_bytes(driver)
        busy = _load_of(process, _MEASURE_S)
        yield (
            f"page {title}, first after {shown:.1f} s",
            _usage_text(busy, websocket_bytes(driver) / _MEASURE_S),
        )
    driver.get("about:blank")
    if errors := page_errors(driver):
        raise RuntimeError(f"the browser reports errors: {errors}")


def _usage_text(busy: float, rate: float | None = None) -> str:
    return f"{busy:.1%} of a core" + ("" if rate is None else f", {rate / 1e3:,.1f} kB/s")


def work(trials: int, results: int) -> Iterator[tuple[str, str]]:
    """Yield the processor time in this process that each figure takes to update after 200 results.

    Unlike wall time it hardly depends on the other load of the machine.
    """
    with tempfile.TemporaryDirectory(prefix="dasktune-bench-") as directory:
        path = Path(directory, "synthetic")
        synthetic = _SyntheticExperiment(path, trials, results)
        synthetic.add_results((trials - _WORKERS) * results)
        live = ExperimentFolder(Storage(path)).find("")
        if live is None:
            raise RuntimeError("there is no experiment")
        live.viewers = 1
        yield "applying the journal", f"{_processor_time(lambda: _apply_journal(live)):.1f} s"
        for page in experiment_pages(live):
            for part in page.sections:
                rendered = RenderedFigure(part.make())
                spent = []
                for _ in range(3):
                    synthetic.add_results(200)
                    _apply_journal(live)
                    began = time.process_time()
                    rendered = _updated(part, rendered)
                    spent.append(1e3 * (time.process_time() - began))
                yield f"{page.title}: {part.name}", f"{spread(spent)} ms"
        for viewers in (1, 10):
            spent, sent = _updates(live, synthetic, viewers)
            yield (
                f"an update of the first page for {viewers}, with applying the records",
                f"{spread(spent)} ms, {spread(sent)} kB",
            )
        synthetic.close()


def _updates(
    live: LiveExperiment, synthetic: _SyntheticExperiment, viewers: int
) -> tuple[list[float], list[float]]:
    """Return milliseconds and kilobytes of five updates, each after one second of results."""
    documents = [Document() for _ in range(viewers)]
    shown = [Viewer(live, document) for document in documents]
    events: list[list[Any]] = [[] for _ in documents]
    for document, changes in zip(documents, events, strict=True):
        document.on_change(changes.append)
    spent, sent = [], []
    for _ in range(6):
        synthetic.add_results(_RATE)
        size, began = 0, time.process_time()
        _apply_journal(live)
        for viewer, changes in zip(shown, events, strict=True):
            viewer.update()
            if changes:
                patch = Protocol().create("PATCH-DOC", list(changes))
                size += len(patch.content_json) + sum(len(one.to_bytes()) for one in patch.buffers)
                changes.clear()
        spent.append(1e3 * (time.process_time() - began))
        sent.append(size / 1e3)
        time.sleep(2.0)  # a figure that took long is not updated again at once
    return spent[1:], sent[1:]


def _processor_time(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _apply_journal(live: LiveExperiment) -> None:
    while live.poll():
        pass


def _updated(part: PageSection, earlier: RenderedFigure) -> RenderedFigure:
    made = part.make()
    rendered = earlier.updated(made) if isinstance(made, FigureSpec) else None
    rendered = rendered or RenderedFigure(made)
    rendered.changes_from(earlier)
    return rendered


def runs(count: int) -> list[tuple[str, list[Figures]]]:
    """Return the figures of real runs without the dashboard, with it, and with one viewer."""
    ways: dict[str, list[Figures]] = {
        "without": [],
        "on, no viewer": [],
        "on, one viewer": [],
    }
    size = Size(trials=4, steps=100_000)
    with local_cluster() as cluster:
        warm_up(cluster)
        for _ in range(count):
            for way, found in ways.items():
                dashboard = False if way == "without" else _free_port()
                with _viewing(dashboard if way == "on, one viewer" else 0):
                    timeline = run(cluster, trainables.steps, size, dashboard=dashboard)
                found.append(timeline.figures())
    return list(ways.items())


def _free_port() -> int:
    import socket

    with socket.create_server(("localhost", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _viewing(port: int) -> Iterator[None]:
    """Run a viewer in a separate process; it waits for the dashboard at `port`. None for port 0."""
    if not port:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.dashboard", "--view", str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def _view_driver(port: int) -> None:
    """View the dashboard of a driver as soon as it is served, and again whenever it closes."""
    url = f"http://localhost:{port}/"
    while True:
        try:
            asyncio.run(_view(url, asyncio.Event()))
        except OSError:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="trials of the journal (10,000)")
    parser.add_argument("--results", type=int, default=100, help="results of each trial (100)")
    parser.add_argument("--runs", type=int, default=5, help="rounds of real experiments (5)")
    parser.add_argument("--only", choices=["pages", "runs", "work"], help="one part (all parts)")
    parser.add_argument("--view", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.view:
        _view_driver(arguments.view)
    print(json.dumps({**machine(), "load": load()}, indent=2))
    if arguments.only in (None, "work"):
        for name, value in work(arguments.trials, arguments.results):
            print(f"{name}: {value}", flush=True)
    if arguments.only in (None, "pages"):
        print(f"\n{arguments.trials:,} trials of {arguments.results} results, then {_RATE}/s\n")
        for name, value in pages(arguments.trials, arguments.results):
            print(f"{name}: {value}", flush=True)
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
            "ratio to the same round without",
            "driver's processor time, us per result",
        )
        print("\n" + table(head, rows))


if __name__ == "__main__":
    main()
