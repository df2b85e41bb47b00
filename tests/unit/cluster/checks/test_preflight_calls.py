"""What the checks before the first trial send to workers, counted on workers without a process."""

from __future__ import annotations

import asyncio
import pickle
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.cluster.checks import preflight as module
from dasktune.cluster.checks.admission import Admission
from dasktune.cluster.checks.preflight import Checks, preflight
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
        self._version = version

    async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        if function is eval or args[0] is eval:
            self.asked.append(workers)
            return dict.fromkeys(workers, self._version)
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
        admission = Admission(client, checks(tmp_path), report.hosts, versions=report.versions)
        await admission.examine(workers())
        return {worker.status for worker in admission(workers()).values()}

    client: Any = Client()
    assert asyncio.run(work()) == {"running"}
    assert client.asked == [ADDRESSES]


def test_a_worker_that_is_checked_again_is_asked_again(tmp_path: Path) -> None:
    async def work() -> None:
        report = await preflight(client, checks(tmp_path), workers=workers())
        admission = Admission(client, checks(tmp_path), report.hosts, versions=report.versions)
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
