"""What the checks before the first trial send to workers, counted on workers without a process."""

from __future__ import annotations

import asyncio
import gc
import pickle
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.checks import preflight as module
from dasktune.cluster.checks.admission import Admission
from dasktune.cluster.checks.preflight import CheckResult, Checks, preflight
from dasktune.cluster.worker.examination import examine
from dasktune.errors import PreflightError
from dasktune.placement import WorkerCapacity
from dasktune.storage.fs.storage import Storage
from dasktune.version import __version__

ADDRESSES = [f"tcp://10.0.0.1:{4000 + number}" for number in range(3)]


class Client:
    """Runs functions for the workers in this process."""

    def __init__(self, version: str = __version__) -> None:
        #: The workers of each question for the version.
        self.asked: list[list[str]] = []
        #: The workers that have examined code and storage.
        self.examined: list[str] = []
        self._version = version

    async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        if function is eval or args[0] is eval:
            self.asked.append(workers)
            return dict.fromkeys(workers, self._version)
        assert examine in (function, args[0])
        self.examined += workers
        answers = {}
        for address in workers:
            worker = {"dask_worker": SimpleNamespace(contact_address=address)} if len(workers) > 1 else {}
            answer = function(*args, **worker)
            answers[address] = await answer if isawaitable(answer) else answer
        return answers


@pytest.fixture(autouse=True)
def _all_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ping_workers(client: Any, addresses: Any, **options: Any) -> set[str]:
        return set(addresses)

    monkeypatch.setattr(module, "ping_workers", ping_workers)


@pytest.fixture(autouse=True)
def _nothing_to_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    async def declare_resources(*args: Any, **options: Any) -> None:
        pass

    monkeypatch.setattr("dasktune.cluster.checks.admission.declare_resources", declare_resources)


def workers() -> dict[str, WorkerCapacity]:
    return {address: WorkerCapacity(address=address, host="10.0.0.1") for address in ADDRESSES}


def checks(tmp_path: Path) -> Checks:
    return Checks(blob=pickle.dumps({"trainable": len}), storage=Storage(str(tmp_path)))


def test_all_workers_import_dasktune_at_the_same_time_and_once(tmp_path: Path) -> None:
    async def work() -> set[str]:
        report = await preflight(client, checks(tmp_path), workers=workers())
        admission = Admission(client, checks(tmp_path), report)
        await admission.examine(workers())
        return {worker.status for worker in admission(workers()).values()}

    client: Any = Client()
    assert asyncio.run(work()) == {"running"}
    assert client.asked == [ADDRESSES]


def test_each_worker_examines_code_and_storage_once(tmp_path: Path) -> None:
    async def work() -> None:
        report = await preflight(client, checks(tmp_path), workers=workers())
        assert client.examined == ADDRESSES[:1]
        await Admission(client, checks(tmp_path), report).examine(workers())

    client: Any = Client()
    asyncio.run(work())
    assert sorted(client.examined) == ADDRESSES


def test_workers_declare_their_resources_while_they_are_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = asyncio.Event()

    async def declare_resources(*args: Any, **options: Any) -> None:
        declared.set()

    async def check_worker(*args: Any, **options: Any) -> CheckResult:
        await declared.wait()
        return CheckResult(shares=False)

    monkeypatch.setattr("dasktune.cluster.checks.admission.declare_resources", declare_resources)
    monkeypatch.setattr("dasktune.cluster.checks.admission.check_worker", check_worker)

    async def work() -> set[bool]:
        admission = Admission(Client(), checks(tmp_path))
        await asyncio.wait_for(admission.examine(workers()), 60)
        return {worker.shares_storage for worker in admission(workers()).values()}

    assert asyncio.run(work()) == {False}


def test_a_worker_that_left_before_its_version_was_needed_leaves_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Mixed(Client):
        async def run(self, function: Any, *args: Any, **options: Any) -> dict[str, Any]:
            answers = await super().run(function, *args, **options)
            return {
                a: "0.0.1" if answer == __version__ and a != ADDRESSES[0] else answer
                for a, answer in answers.items()
            }

    client: Any = Mixed()
    report = asyncio.run(preflight(client, checks(tmp_path), workers=workers()))
    assert list(report.passed) == ADDRESSES[:1]
    del report
    gc.collect()
    assert caplog.text == ""


def test_a_worker_that_is_checked_again_is_asked_again(tmp_path: Path) -> None:
    async def work() -> None:
        report = await preflight(client, checks(tmp_path), workers=workers())
        admission = Admission(client, checks(tmp_path), report)
        await admission.examine(workers())
        # All have left, and the same addresses have come back.
        admission({})
        await admission.examine(workers())

    client: Any = Client()
    asyncio.run(work())
    assert list(map(sorted, client.asked)) == [ADDRESSES, ADDRESSES]


def test_another_version_of_dasktune_is_refused(tmp_path: Path) -> None:
    client: Any = Client(version="0.0.1")
    with pytest.raises(PreflightError, match=r"got 0\.0\.1 on tcp://10\.0\.0\.1:4000"):
        asyncio.run(preflight(client, checks(tmp_path), workers=workers()))
