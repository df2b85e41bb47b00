"""Experiments to which something happens, and that check what they were told meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import cluster_kit
from cluster_kit import (
    Fleet,
    assert_no_step_back,
    fitting,
    histories,
    journal,
    note,
    run_config,
    statuses,
    until,
)
from distributed import Client

import dasktune as tune
from dasktune.schedulers import FIFOScheduler
from dasktune.schedulers.decision import Command
from dasktune.search import BasicVariantGenerator
from dasktune.trial.trial import Trial


def walk(config: dict[str, Any]) -> None:
    """Report steps, each with a checkpoint, until a test makes a file."""
    place = Path(config["place"])
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    note(place, f"{os.getpid()} begins")
    try:
        while step < 3 or not (place / "go").exists():
            step += 1
            tune.report(
                {"step": step, "pid": os.getpid()},
                checkpoint=tune.Checkpoint.from_dict({"step": step}),
            )
            time.sleep(0.05)
    finally:
        note(place, f"{os.getpid()} leaves")


class CountingScheduler(FIFOScheduler):
    """Counts the notifications about each trial."""

    def __init__(self) -> None:
        self.added: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def on_trial_add(self, trial: Trial) -> None:
        self.added[trial.trial_id] += 1

    def on_trial_complete(self, trial: Trial, result: Mapping[str, Any]) -> tuple[Command, ...]:
        self.ended[trial.trial_id] += 1
        return ()

    def on_trial_error(self, trial: Trial) -> tuple[Command, ...]:
        self.ended[trial.trial_id] += 1
        return ()

    def on_trial_remove(self, trial: Trial) -> tuple[Command, ...]:
        self.ended[trial.trial_id] += 1
        return ()


class CountingSearch(BasicVariantGenerator):
    """Counts the notifications about each trial."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: Counter[str] = Counter()

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self.ended[trial_id] += 1
        super().on_trial_complete(trial_id, result, error)


class Bout:
    """An experiment in which something goes wrong."""

    def __init__(
        self,
        trainable: Any,
        place: Path,
        client: Any,
        *,
        space: Mapping[str, Any] | None = None,
        num_samples: int = 1,
        **options: Any,
    ) -> None:
        self.place = place
        self.search = CountingSearch()
        self.tuner = tune.Tuner(
            trainable,
            param_space={"place": str(place), **(space or {})},
            tune_config=tune.TuneConfig(
                num_samples=num_samples, scheduler=CountingScheduler(), search_alg=self.search
            ),
            run_config=run_config(place, **options),
            client=client,
        )

    def fitting(self) -> AbstractContextManager[Future[tune.ResultGrid]]:
        """Run it in a thread."""
        return fitting(self.tuner)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what stands in the journal so far, of one kind."""
        return journal(self.place, event=kind)

    @property
    def losses(self) -> list[dict[str, Any]]:
        return self.events("TrialLost")

    def is_walking(self, trials: int = 1, incarnation: int = 1) -> bool:
        """Whether so many trials have come to their third step in an incarnation of theirs."""
        steps = Counter(
            one["trial_id"] for one in self.events("ResultReported") if one["incarnation"] >= incarnation
        )
        return sum(count >= 3 for count in steps.values()) >= trials

    def go(self) -> None:
        """Let the trials come to their end."""
        (self.place / "go").touch()

    def where(self) -> dict[str, str]:
        """Return the worker on which each trial was started last."""
        return {one["trial_id"]: one["worker"] for one in self.events("TrialStarted")}

    def assert_exact(self, results: tune.ResultGrid) -> None:
        """All trials have ended well, and nothing is missing or double."""
        assert statuses(results) == {"TERMINATED"}, [result.reason for result in results]
        for history in histories(results):
            assert history == list(range(1, len(history) + 1))
        assert_no_step_back(self.place)
        self.assert_seen_once(results)

    def assert_seen_once(self, results: tune.ResultGrid) -> None:
        """Every trial was announced once and ended once; nothing came from an ended incarnation."""
        once = Counter(result.trial_id for result in results)
        # Not the one that was given, but its copy.
        scheduler = self.tuner.runner.experiment.scheduler
        assert scheduler.added == once
        assert scheduler.ended == once
        assert self.search.ended == once
        lost = set()
        for record in journal(self.place):
            incarnation = record.get("trial_id"), record.get("incarnation")
            assert incarnation not in lost
            if record["event"] == "TrialLost":
                lost.add(incarnation)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(client: Client, address: str) -> int:
    [pid] = client.run(os.getpid, workers=[address]).values()
    return int(pid)


def addresses(client: Client) -> set[str]:
    return set(client.scheduler_info()["workers"])


def add_and_meet(fleet: Fleet, client: Client, *options: str, **more: Any) -> tuple[Any, str]:
    """Add a worker, and return its process and its address."""
    before = addresses(client)
    process = fleet.add_worker(*options, **more)
    [address] = until(lambda: addresses(client) - before)
    return process, address


def slots(dask_scheduler: Any) -> list[str]:
    """Return the keys of all slots and leases that the scheduler knows."""
    return [str(key) for key in dask_scheduler.tasks if "-actor-" in str(key)]


def held(dask_scheduler: Any) -> dict[str, float]:
    """Return what the scheduler counts as taken, by worker."""
    taken = {one.address: sum(one.used_resources.values()) for one in dask_scheduler.workers.values()}
    return {address: amount for address, amount in taken.items() if amount > 1e-6}


#: Runs trials that walk, on two workers in all, and checks in the end that nothing is missing or
#: double. Takes the folders of the kits, a directory, an address, an isolation, and on how many
#: workers each has a bundle.
DRIVER = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import dasktune as tune
from cluster_kit import driver_settings
from fault_kit import Bout, walk
if __name__ == "__main__":
    place, address, isolation, bundles = sys.argv[3:]
    request = tune.PlacementGroupFactory([{"CPU": 1}] * int(bundles), "STRICT_SPREAD")
    trainable = tune.with_resources(walk, request)
    limits = {"heartbeat_timeout": 60.0, "driver_ttl": 2.0, "stop_grace": 1.0}
    num = 2 // int(bundles)
    bout = Bout(trainable, Path(place), address, num_samples=num, isolation=isolation, **limits)
    # There are no other workers.
    with driver_settings(avoid_time=0.5):
        bout.assert_exact(bout.tuner.fit())
"""


def start_driver(
    place: Path, address: str, isolation: str = "thread", bundles: int = 1
) -> subprocess.Popen[bytes]:
    kits = [str(Path(module.__file__).parent) for module in (cluster_kit, sys.modules[__name__])]
    options = [str(place), address, isolation, str(bundles)]
    command = [sys.executable, "-c", DRIVER, *kits, *options]
    with (place / "driver.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


class Proxy:
    """Passes connections on, unless a test cuts them: then it swallows everything."""

    def __init__(self, target: int) -> None:
        self._target = ("127.0.0.1", target)
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Let nothing through, without a word to either side, as a network does that is gone."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def _accept(self) -> None:
        while True:
            one, _ = self._listener.accept()
            try:
                other = socket.create_connection(self._target)
            except OSError:
                one.close()
                continue
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: Any, target: Any) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
