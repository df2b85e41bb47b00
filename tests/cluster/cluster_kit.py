"""Real clusters whose processes a test may kill, and trials that say what they do."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from distributed import Client, LocalCluster
from forks import PATIENCE, Fork, fork_server
from free_port import free_port

import dasktune as tune
from dasktune.cluster.driver.dispatcher import DispatcherSettings
from dasktune.cluster.driver.launch import Launch
from dasktune.cluster.membership import worker_monitor
from dasktune.cluster.membership.worker_list import list_workers, read_cluster
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

T = TypeVar("T")

#: What a process runs first that cannot import dasktune, as one that somebody else has set up.
WITHOUT_DASKTUNE = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "dasktune":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
for name in [one for one in sys.modules if one.split(".")[0] == "dasktune"]:
    del sys.modules[name]
"""


def until(condition: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Look until a condition holds, and return what it gave."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.02)
    return value


@contextmanager
def driver_settings(**changes: Any) -> Iterator[None]:
    """Change settings of the drivers in this process that a user cannot set."""
    settings = Launch.dispatcher_settings

    def changed(self: Launch) -> DispatcherSettings:
        return replace(settings(self), **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "dispatcher_settings", changed)
        yield


@contextmanager
def readings_of_workers(
    change: Callable[[dict[str, WorkerCapacity]], dict[str, WorkerCapacity]] = dict,
) -> Iterator[list[str]]:
    """Yield a list that grows when a driver in this process begins to read the workers.

    The drivers get what `change` makes of the workers.
    """
    begun: list[str] = []

    async def read(client: Client, prefix: str, *arguments: Any) -> Any:
        begun.append(prefix)
        workers, share = await read_cluster(client, prefix, *arguments)
        return change(workers), share

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_monitor, "read_cluster", read)
        yield begun


#: Either kind of process; a fork is as good as a new process, but much quicker to start.
Process: TypeAlias = "subprocess.Popen[bytes] | Fork"


class Fleet:
    """A scheduler and workers, each a process of its own, as users start them.

    All of them run `prelude` before anything else, and the scheduler then `its_prelude`. Those that
    run nothing before are forks of a process that has imported Dask and dasktune, and may import
    from `paths`, too.
    """

    def __init__(
        self, directory: Path, prelude: str = "", its_prelude: str = "", paths: Sequence[Path] = ()
    ) -> None:
        self._directory, self._paths = directory, paths
        self._prelude, self._its_prelude = prelude, its_prelude
        self._processes: list[Process] = []
        self.workers: list[Process] = []
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self.start_scheduler()

    def start_scheduler(self) -> Process:
        flags = ["--host=127.0.0.1", f"--port={self.port}", "--no-dashboard", "--no-show"]
        self.scheduler = self._start("scheduler", self._its_prelude, *flags)
        return self.scheduler

    def add_worker(
        self,
        *options: str,
        nanny: bool = False,
        dasktune: bool = True,
        scheduler: str | None = None,
        directory: Path | None = None,
    ) -> Process:
        flags = ["--nthreads=1", "--no-dashboard", "--memory-limit=0"]
        flags.append("--nanny" if nanny else "--no-nanny")
        if not any(option.startswith("--listen-address") for option in options):
            flags.append("--host=127.0.0.1")
        first = "" if dasktune else WITHOUT_DASKTUNE
        arguments = (scheduler or self.address, *flags, *options)
        process = self._start("worker", first, *arguments, directory=directory)
        self.workers.append(process)
        return process

    def keep(self, count: int) -> None:
        """See to it that exactly so many healthy workers are there."""
        if self.scheduler.poll() is not None:
            self.start_scheduler()
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) > count:
            kill(self.workers.pop())
        while len(self.workers) < count:
            self.add_worker()
        with self.client() as client:
            until(lambda: len(client.scheduler_info()["workers"]) == count)

    def address_of(self, process: Process) -> str:
        with self.client() as client:
            pids = client.run(os.getpid)
        return next(address for address, pid in pids.items() if pid == process.pid)

    @contextmanager
    def client(self) -> Iterator[Client]:
        try:
            client = Client(self.address, set_as_default=False, timeout=PATIENCE)
        except OSError as error:
            log = self._log(self._processes.index(self.scheduler)).read_text()
            raise AssertionError(f"the scheduler does not answer; it wrote:\n{log}") from error
        with client:
            yield client

    def close(self) -> None:
        for process in self._processes:
            kill(process)

    def _log(self, number: int) -> Path:
        return self._directory / f"process-{number}.log"

    def _start(self, role: str, prelude: str, *arguments: str, directory: Path | None = None) -> Process:
        log, directory = self._log(len(self._processes)), directory or self._directory
        prelude = f"{self._prelude}\n{prelude}".strip()
        process: Process
        if prelude:
            program = f"{prelude}\nfrom distributed.cli.dask_{role} import main\nmain()"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-c", program, *arguments], stdout=output, stderr=output, cwd=directory
                )
        else:
            main = f"distributed.cli.dask_{role}:main"
            process = fork_server().start(
                main, list(arguments), log=log, directory=directory, paths=self._paths
            )
        self._processes.append(process)
        return process


def make_certificate(directory: Path) -> Path:
    """Write a self-signed certificate and its key into one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    path = directory / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", path, "-out", path], check=True, capture_output=True)
    key = path.read_text()
    made = subprocess.run(
        [openssl, "req", "-x509", "-key", path, "-subj", "/CN=localhost"],
        check=True,
        capture_output=True,
        text=True,
    )
    path.write_text(key + made.stdout)
    return path


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


class SharedPair:
    """Two worker processes with a thread each, which all tests share until one of them fails."""

    def __init__(self) -> None:
        self._cluster: LocalCluster | None = None

    def cluster(self) -> LocalCluster:
        """Return the cluster, which is started if there is none."""
        if self._cluster is None:
            self._cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
        return self._cluster

    def close(self) -> None:
        """End the cluster, and with it all experiments on it."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


@contextmanager
def fitting(tuner: tune.Tuner) -> Iterator[Future[tune.ResultGrid]]:
    """Run an experiment in a thread. A test that fails interrupts it and waits a short time."""
    future: Future[tune.ResultGrid] = Future()

    def fit() -> None:
        try:
            future.set_result(tuner.fit())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=fit, daemon=True).start()
    try:
        yield future
    except BaseException:
        # It would keep the workers from the tests that share the cluster.
        tuner._interrupt("a test that has failed")
        wait([future], timeout=20.0)
        raise
    future.exception(timeout=PATIENCE)


def run_config(place: Path, name: str = "run", **options: Any) -> tune.RunConfig:
    return tune.RunConfig(storage_path=place, name=name, verbose=0, **options)


def journal(place: Path, name: str = "run", event: str = "") -> list[dict[str, Any]]:
    """Read what stands in an experiment's journal so far."""
    records = read_journal(Storage(str(place / name)))
    return [one for one in records if event in ("", one["event"])]


def notes(place: Path) -> list[str]:
    """Read what the trials noted down, see `note`."""
    path = place / "notes"
    return path.read_text().splitlines() if path.exists() else []


def note(place: Path, text: object) -> None:
    descriptor = os.open(place / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def wait_for_file(path: Path) -> None:
    """Block user code, in a way that an interrupt can end, until a test makes a file."""
    while not path.exists():
        time.sleep(0.01)


def steps(config: dict[str, Any]) -> None:
    """Report steps 1, 2, ..., each with a checkpoint, and wait before those that have a gate."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["step"] if checkpoint else 0
    note(place, f"{tune.get_context().get_trial_id()} starts after {done}")
    for step in range(done + 1, config["steps"] + 1):
        if step in config.get("gates", ()):
            wait_for_file(place / f"gate-{step}")
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


class Tally(tune.Trainable):
    """Counts its steps, and notes each, until there is a file named "enough"."""

    def setup(self, config: dict[str, Any]) -> None:
        self.place = Path(config["place"])
        self.count = 0

    def step(self) -> dict[str, Any]:
        time.sleep(0.05)
        self.count += 1
        note(self.place, "step")
        return {"step": self.count, "done": (self.place / "enough").exists()}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = int(Path(checkpoint, "count").read_text())


def histories(results: tune.ResultGrid, name: str = "step") -> list[list[Any]]:
    return [[row[name] for row in result.history] for result in results]


def statuses(results: tune.ResultGrid) -> set[str]:
    return {result.status.value for result in results}


def restarts(place: Path, name: str = "run") -> list[tuple[str, int]]:
    """Return trial and iteration that each start resumes from, as the driver ordered them."""
    starts = []
    for record in journal(place, name):
        for action in record.get("actions", ()):
            if action["do"] == "StartTrial":
                starts.append((action["trial_id"], 0))
            elif action["do"] == "RestoreTrial":
                starts.append((action["trial_id"], action["checkpoint"]["iteration"]))
    return starts


def results_so_far(place: Path) -> int:
    return len(journal(place, event="ResultReported"))


def assert_no_step_back(place: Path) -> None:
    """Each start resumes from the newest checkpoint that was recorded before it."""
    newest: Counter[str] = Counter()
    for record in journal(place):
        for action in record.get("actions", ()):
            if action["do"] == "StartTrial":
                assert newest[action["trial_id"]] == 0
            elif action["do"] == "RestoreTrial":
                assert newest[action["trial_id"]] == action["checkpoint"]["iteration"]
        if record.get("checkpoint"):
            newest[record["trial_id"]] = record["checkpoint"]["iteration"]


async def leave(dask_worker: Any) -> None:
    """Let a worker go, as one does whose time is up."""
    dask_worker.leaving = asyncio.ensure_future(dask_worker.close())


def disregard_threads() -> None:
    """Let `trial_threads` leave out the threads that other tests have left in this process."""
    for thread in threading.enumerate():
        thread.is_of_another_test = True  # type: ignore[attr-defined]


def trial_threads() -> list[str]:
    """Return the trial threads of this process."""
    threads = [one for one in threading.enumerate() if one.name.startswith("dasktune-")]
    return [one.name for one in threads if not hasattr(one, "is_of_another_test")]


def plugins(dask_worker: Any) -> list[str]:
    """Return the plugins of ours that are registered on a worker."""
    return [name for name in dask_worker.plugins if name.startswith("dasktune")]


def keys(dask_scheduler: Any) -> list[str]:
    """Return what the scheduler still knows of ours."""
    tasks = [str(key) for key in dask_scheduler.tasks if str(key).startswith("dasktune")]
    return tasks + [name for name in dask_scheduler.worker_plugins if name.startswith("dasktune")]


def on_workers(client: Client, function: Callable[..., Any]) -> dict[str, Any]:
    """Call a function on all workers, and again if one of them leaves meanwhile."""

    def ask() -> list[dict[str, Any]]:
        # A closed connection, or one that the worker no longer accepts.
        with suppress(OSError):
            return [client.run(function)]
        return []

    [answers] = until(ask)
    return answers


def assert_clean(client: Client) -> None:
    """Nothing of ours is left on a cluster."""
    until(lambda: not client.run_on_scheduler(keys))
    until(lambda: not any(on_workers(client, plugins).values()))
    until(lambda: not any(on_workers(client, trial_threads).values()))


def leased_of_only_worker(dask_scheduler: Any) -> tuple[dict[str, float], int]:
    """Return what the only worker holds, as the scheduler sees it, and its long-running tasks."""
    [worker] = dask_scheduler.workers.values()
    return dict(worker.used_resources), len(worker.long_running)


def available(dask_worker: Any) -> dict[str, float]:
    """Return what a worker itself thinks that it has left."""
    return dict(dask_worker.state.available_resources)


async def capacities(client: Client) -> Any:
    return await list_workers(client)


#: Runs two endless trials; for the tests that kill a driver. Takes a directory and an address.
DRIVER = """
import sys
from pathlib import Path
import dasktune as tune
place, address = Path(sys.argv[1]), sys.argv[2]
def trainable(config):
    while True:
        tune.report({"step": 1})
if __name__ == "__main__":
    tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=tune.RunConfig(storage_path=place, name="run", verbose=0),
        client=address,
    ).fit()
"""
