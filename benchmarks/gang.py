"""How long trials on several ranks start, report and die: ``python -m benchmarks.gang``.

Four ranks of plain Python run on two workers with nannies, all on one machine without a GPU. A
start is from the grant of the resources to the first result. A report is a call of `report` on rank
0 without a checkpoint, which waits for all ranks. A kill is SIGKILL to one rank while the others
wait in C code with the interpreter's lock; it lasts until all processes have ended, and the next
start until its first result has been recorded. If a worker is killed, a trial with `min_ranks`
starts with two ranks at once, and with four when the nanny has started another worker. On a busy
machine all times are longer, so the processor time of ranks and workers is also given.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import random
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import dask
import psutil
from distributed import LocalCluster

import dasktune as tune
from benchmarks._measure import load, machine
from benchmarks._report import table
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.journal_reader import read_journal

__all__ = ["barrier", "kills", "kills_in_saves", "lost_workers", "starts_with_import", "stops"]

RANKS = 4
#: Bytes of each rank's part of a checkpoint.
PART = 1_000_000
#: Seconds between two readings of a whole journal.
_READ_SECONDS = 0.1


def _introduce(place: Path) -> None:
    """Let the benchmark know the process of this rank."""
    part = place / f"part-{os.getpid()}"
    part.write_text(str(tune.get_context().get_world_rank()))
    part.rename(place / f"rank-{os.getpid()}")


def _leave_together(config: dict[str, Any]) -> None:
    step = 0
    try:
        while True:
            step += 1
            tune.report({"step": step, "done": step == config["last"]})
    finally:
        trial = tune.get_context().get_trial_id()
        (Path(config["place"]) / f"last-{trial}-{os.getpid()}").write_text(str(step))


def _report_often(config: dict[str, Any]) -> None:
    for _ in range(config["steps"]):
        tune.report({"step": 0})
    _introduce(Path(config["place"]))
    durations = []
    before = time.process_time()
    for _ in range(config["steps"]):
        begun = time.perf_counter()
        tune.report({"step": 1})
        durations.append(time.perf_counter() - begun)
    spent = time.process_time() - before
    tune.report({"durations": durations, "spent": spent}, checkpoint=None)


def _wait_in_c(config: dict[str, Any]) -> None:
    _introduce(Path(config["place"]))
    tune.report({"step": 1})
    (Path(config["place"]) / f"reported-{os.getpid()}").touch()
    ctypes.PyDLL(None).pause()


def _save_parts(config: dict[str, Any]) -> None:
    context = tune.get_context()
    rank = context.get_world_rank()
    checkpoint = tune.get_checkpoint()
    step = 0 if checkpoint is None else int((Path(checkpoint.path) / f"part-{rank}").read_text())
    _introduce(Path(config["place"]))
    while True:
        step += 1
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, f"part-{rank}").write_text(str(step).ljust(PART))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(directory))


def _save_each_step(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    while True:
        step += 1
        time.sleep(0.02)
        saved = tune.Checkpoint.from_dict({"step": step}) if not tune.get_context().get_world_rank() else None
        tune.report({"step": step}, checkpoint=saved)


def stops(cluster: LocalCluster, trials: int) -> tuple[list[float], int]:
    """Return the seconds of each start, and the number of trials whose ranks left at one report."""
    chosen = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        space = {"last": tune.grid_search([chosen.randint(1, 20) for _ in range(trials)])}
        _tuner(cluster, place, _leave_together, space).fit()
        starts = _starts(place)
        lasts: dict[str, list[str]] = {}
        for path in place.glob("last-*"):
            lasts.setdefault(path.name.split("-")[1], []).append(path.read_text())
        together = sum(len(one) == RANKS and len(set(one)) == 1 for one in lasts.values())
        return starts, together


def _import_and_report(config: dict[str, Any]) -> None:
    importlib.import_module(config["module"])
    tune.report({"step": 1})


def starts_with_import(cluster: LocalCluster, module: str, trials: int, *, preloaded: bool) -> list[float]:
    """Return the seconds from the grant to the first result of ranks that import a module.

    The trials run one after the other. If the workers preload the module, the first one has to wait
    for that.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        one = tune.Tuner(
            tune.with_ranks(_import_and_report, RANKS, preload=[module] if preloaded else None),
            param_space={"module": module, "number": tune.grid_search(list(range(trials)))},
            tune_config=tune.TuneConfig(max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=place, name="run", verbose=0),
            client=cluster,
        )
        assert not one.fit().errors
        return _starts(place)


def _starts(place: Path) -> list[float]:
    """Return the seconds from each grant of resources to the first result."""
    starts, granted = [], {}
    for record in _journal(place):
        if record["event"] == "ResourcesGranted":
            granted[record["trial_id"]] = record["time"]
        elif record["event"] == "ResultReported" and record["trial_id"] in granted:
            starts.append(record["time"] - granted.pop(record["trial_id"]))
    return starts


def barrier(cluster: LocalCluster, ranks: int, steps: int) -> tuple[list[float], float, float]:
    """Return the seconds of each report, and the processor seconds of rank 0 and both workers."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        seen: list[float] = []

        def watch() -> None:
            _until(lambda: len(list(place.glob("rank-*"))) == ranks)
            seen.append(_spent(cluster))

        watching = threading.Thread(target=watch)
        watching.start()
        [result] = _tuner(cluster, place, _report_often, {"steps": steps}, ranks=ranks).fit()
        watching.join()
        workers = (_spent(cluster) - seen[0]) / steps
        return result.metrics["durations"], result.metrics["spent"] / steps, workers


def kills(cluster: LocalCluster, times: int) -> tuple[list[float], list[float]]:
    """Return seconds from a kill to the end of all ranks, and to the next start's first result."""
    chosen = random.Random(0)
    ends, resumes = [], []
    with tempfile.TemporaryDirectory() as folder, _running(cluster, Path(folder), _wait_in_c) as place:
        _until(lambda: len(list(place.glob("reported-*"))) == RANKS)
        for _ in range(times):
            pids = _pids(place)
            for path in place.glob("re*-*"):
                path.unlink()
            _until(lambda pids=pids: all(psutil.Process(pid).status() == "sleeping" for pid in pids))
            with _watched(pids) as all_ended:
                begun = time.perf_counter()
                os.kill(chosen.choice(pids), signal.SIGKILL)
                all_ended()
                ends.append(time.perf_counter() - begun)
            for pid in pids:
                (place / f"rank-{pid}").unlink()
            _until(lambda: list(place.glob("reported-*")))
            resumes.append(time.perf_counter() - begun)
            _until(lambda: len(list(place.glob("reported-*"))) == RANKS)
    return ends, resumes


def lost_workers(cluster: LocalCluster, times: int) -> tuple[list[float], list[float], list[float]]:
    """Kill a worker of an elastic trial, and return three lists of seconds.

    From the kill to another worker of the nanny; from the kill to the first result with fewer
    ranks; and from the moment at which the trial should leave to its first result with all ranks.
    The trial saves each step, and neither waits for ranks nor trains with fewer for some time.
    """
    replaced, resumed, grown = [], [], []
    elastic = {"min_ranks": RANKS // 2, "wait_for_ranks_s": 0, "grow_after_s": 0}
    # On a busy machine a worker may need longer than Dask waits before it drops its name.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    with (
        patient,
        tempfile.TemporaryDirectory() as folder,
        _running(cluster, Path(folder), _save_each_step, **elastic) as place,
    ):
        for _ in range(times):
            _until(lambda: _have_results(place)[-1:] == [(RANKS, True)], _READ_SECONDS)
            known = len(_starts_of_ranks(place))
            address = _starts_of_ranks(place)[-1]["ranks"][-1][0]
            [nanny] = [one for one in cluster.workers.values() if one.worker_address == address]
            before, begun = nanny.pid, time.time()
            os.kill(before, signal.SIGKILL)
            _until(lambda before=before, nanny=nanny: nanny.pid not in (None, before))
            _until(lambda: len(cluster.scheduler.workers) == len(cluster.workers))
            replaced.append(time.time() - begun)
            _until(
                lambda known=known: (
                    len(_have_results(place)) > known and _have_results(place)[-1] == (RANKS, True)
                ),
                _READ_SECONDS,
            )
            firsts = _first_results(place)
            fewer = _starts_of_ranks(place)[known]
            # If the worker is back at once, the next start has all ranks.
            if len(fewer["ranks"]) < RANKS:
                resumed.append(firsts[fewer["incarnation"]] - begun)
                room = [one for one in _journal(place) if one["event"] == "RoomForRanks"][-1]
                last = _starts_of_ranks(place)[-1]
                grown.append(firsts[last["incarnation"]] - room["time"])
    return replaced, resumed, grown


def _starts_of_ranks(place: Path) -> list[dict[str, Any]]:
    return [one for one in _journal(place) if one["event"] == "TrialStarted"]


def _first_results(place: Path) -> dict[int, float]:
    """Return when each start of the only trial had its first result."""
    firsts: dict[int, float] = {}
    for record in _journal(place):
        if record["event"] == "ResultReported":
            firsts.setdefault(record["incarnation"], record["time"])
    return firsts


def _have_results(place: Path) -> list[tuple[int, bool]]:
    """Return the number of ranks of each start, and whether it has a result."""
    firsts = _first_results(place)
    return [(len(one["ranks"]), one["incarnation"] in firsts) for one in _starts_of_ranks(place)]


def kills_in_saves(cluster: LocalCluster, times: int, seed: int = 0) -> dict[str, int]:
    """Kill ranks while they save, and return what is left of their checkpoints."""
    chosen = random.Random(seed)
    half = 0
    with tempfile.TemporaryDirectory() as folder, _running(cluster, Path(folder), _save_parts) as place:
        for _ in range(times):
            _until(lambda: len(_pids(place)) == RANKS)
            pids = _pids(place)
            saved = len(list(place.glob("run/trials/*/checkpoint_*/.manifest.json")))
            _until(lambda saved=saved: len(list(place.glob("run/trials/*/*/.manifest.json"))) > saved)
            time.sleep(chosen.uniform(0, 0.1))
            with _watched(pids) as all_ended:
                os.kill(chosen.choice(pids), signal.SIGKILL)
                all_ended()
            # The next start of the trial deletes what the last one has not committed.
            there = place.glob("run/trials/*/checkpoint_*")
            half += any(not (path / ".manifest.json").exists() for path in there)
            for pid in pids:
                (place / f"rank-{pid}").unlink()
        return {"kills in the middle of a save": half, **_checked(place)}


def _checked(place: Path) -> dict[str, int]:
    steps = [one["metrics"]["step"] for one in _journal(place) if one["event"] == "ResultReported"]
    found = {"committed": 0, "mixed": 0, "damaged": 0, "steps": len(steps)}
    found["missing or double"] = (
        len(set(range(1, max(steps) + 1)) ^ set(steps)) + len(steps) - len(set(steps))
    )
    for path in place.glob("run/trials/*/checkpoint_*"):
        if not (path / ".manifest.json").exists():
            continue
        parts = [part.read_text() for part in path.glob("part-*")]
        found["committed"] += 1
        found["damaged"] += len(parts) != RANKS or any(len(part) != PART for part in parts)
        found["mixed"] += len(set(parts)) > 1
    return found


def _tuner(
    cluster: LocalCluster,
    place: Path,
    trainable: Any,
    space: dict[str, Any],
    ranks: int = RANKS,
    elastic: dict[str, Any] | None = None,
    **options: Any,
) -> tune.Tuner:
    return tune.Tuner(
        tune.with_ranks(trainable, ranks, **(elastic or {})),
        param_space={"place": str(place), **space},
        run_config=tune.RunConfig(storage_path=place, name="run", verbose=0, **options),
        client=cluster,
    )


class _UntilThereIsAFile(tune.Stopper):
    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._path.exists()


@contextmanager
def _running(cluster: LocalCluster, place: Path, trainable: Any, **elastic: Any) -> Iterator[Path]:
    """Run an endless trial that may fail without limit."""
    options = {
        "failure_config": tune.FailureConfig(max_failures=-1),
        "stop": _UntilThereIsAFile(place / "stop"),
        "stop_grace": 0.5,
        "log_to_file": False,
    }
    one = _tuner(cluster, place, trainable, {}, elastic=elastic, **options)
    running = threading.Thread(target=one.fit, daemon=True)
    running.start()
    yield place
    (place / "stop").touch()
    running.join()


def _journal(place: Path) -> list[dict[str, Any]]:
    return list(read_journal(Storage(str(place / "run"))))


def _pids(place: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in place.glob("rank-*"))


@contextmanager
def _watched(pids: list[int]) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until all these processes have ended."""
    files = [os.pidfd_open(pid) for pid in pids]

    def wait() -> None:
        for file in files:
            select.select([file], [], [])

    try:
        yield wait
    finally:
        for file in files:
            os.close(file)


def _spent(cluster: LocalCluster) -> float:
    """Return the processor seconds of all worker processes, without their children."""
    processes = [psutil.Process(worker.pid) for worker in cluster.workers.values()]
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def _until(condition: Callable[[], Any], pause: float = 0.001) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks have not come so far in two minutes")
        time.sleep(pause)


def _shown(durations: list[float]) -> list[str]:
    """Return median, 95th percentile and maximum in milliseconds, and the number."""
    late = quantiles(durations, n=20, method="inclusive")[-1] if len(durations) > 1 else durations[0]
    return [*(f"{1e3 * one:.3g}" for one in (median(durations), late, max(durations))), str(len(durations))]


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gang", description=__doc__)
    parser.add_argument("--stops", type=int, default=100, help="trials that are stopped (100)")
    parser.add_argument("--kills", type=int, default=40, help="kills of a rank (40)")
    parser.add_argument("--saves", type=int, default=200, help="kills of a rank while all save (200)")
    parser.add_argument("--reports", type=int, default=500, help="reports of each number of ranks (500)")
    parser.add_argument("--losses", type=int, default=0, help="kills of a worker (0)")
    parser.add_argument("--imports", type=int, default=0, help="trials that import a module (0)")
    parser.add_argument("--module", default="torch", help="the module (torch)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments of the latter (0)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    chosen = _parsed(arguments)
    rows: list[list[str]] = []
    print(machine(), f"load {load():.1f}")
    with LocalCluster(n_workers=2, threads_per_worker=RANKS // 2, dashboard_address=":0") as cluster:
        if chosen.stops:
            starts, together = stops(cluster, chosen.stops)
            rows.append(["start of 4 ranks, grant to first result", *_shown(starts)])
            print(f"ranks that left at one report: {together} of {chosen.stops} trials")
        for preloaded in (False, True) if chosen.imports else ():
            first, *later = starts_with_import(cluster, chosen.module, chosen.imports, preloaded=preloaded)
            kind = "forks that preload" if preloaded else "interpreters that import"
            rows.append([f"start of {RANKS} {kind} {chosen.module}: first trial", *_shown([first])])
            if later:
                rows.append([f"start of {RANKS} {kind} {chosen.module}: later trials", *_shown(later)])
        for ranks in (1, 2, RANKS) if chosen.reports else ():
            durations, own, workers = barrier(cluster, ranks, chosen.reports)
            rows.append([f"report of {ranks} ranks", *_shown(durations)])
            print(
                f"processor time of a report of {ranks} ranks: rank 0 {1e3 * own:.2g} ms, "
                f"both workers {1e3 * workers:.2g} ms"
            )
        if chosen.kills:
            ends, resumes = kills(cluster, chosen.kills)
            rows.append(["SIGKILL of a rank, until all 4 have ended", *_shown(ends)])
            rows.append(["SIGKILL of a rank, until the next start's first result", *_shown(resumes)])
        if chosen.losses:
            replaced, resumed, grown = lost_workers(cluster, chosen.losses)
            rows.append(["SIGKILL of a worker, until its nanny has another one", *_shown(replaced)])
            rows.append(["SIGKILL of a worker, until the first result with 2 ranks", *_shown(resumed)])
            rows.append(["room for 4 ranks, until the first result with them", *_shown(grown)])
        if chosen.saves:
            found = kills_in_saves(cluster, chosen.saves, chosen.seed)
            print(f"after {chosen.saves} kills in saves: {found}")
    print(f"load {load():.1f}")
    print(table(["what", "median, ms", "95 %", "longest", "number"], rows))


if __name__ == "__main__":
    main()
