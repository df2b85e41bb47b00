"""What the checks before the first trial send to workers, counted on workers without a process."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

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
        #: The workers of each question.
        self.asked: list[list[str]] = []
        #: The workers that have only imported dasktune.
        self.imported: list[str] = []
        #: The workers that have checked user code, and those that have checked the storage.
        self.ran_code: list[str] = []
        self.used_storage: list[str] = []
        self._version = version

    async def run_on_scheduler(self, function: Any, addresses: Any, *seconds: float) -> Any:
        """Ping workers, which all answer."""
        return addresses

    async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        self.asked.append(workers)
        if args[1] is None:
            self.imported += workers
            return dict.fromkeys(workers)
        arguments = dict.fromkeys(workers, args) if len(workers) == 1 else args[1]
        return {address: await self.answer(address, *arguments[address]) for address in workers}

    async def answer(self, address: str, common: Any, own: Any) -> Any:
        """Answer for one worker."""
        ours, _, examination = common
        if ours != self._version:
            return self._version
        blob, reply = own
        self.ran_code += [address] if blob else []
        self.used_storage += [address] if reply else []
        return await pickle.loads(examination).run(blob, reply)


def workers() -> dict[str, WorkerCapacity]:
    return {address: WorkerCapacity(address=address, host="10.0.0.1") for address in ADDRESSES}


def checks(tmp_path: Path) -> Checks:
    return Checks(blob=pickle.dumps({"trainable": len}), storage=Storage(str(tmp_path)))


def test_all_workers_are_asked_at_the_same_time_and_once(tmp_path: Path) -> None:
    async def work() -> set[str]:
        report = await preflight(client, checks(tmp_path), workers=workers())
        admission = Admission(client, checks(tmp_path), report)
        await admission.examine(workers())
        return {worker.status for worker in admission(workers()).values()}

    client: Any = Client()
    assert asyncio.run(work()) == {"running"}
    # User code may take long to import, so only one worker of the host imports it, asked by itself.
    assert sorted(client.asked) == [ADDRESSES[:1], ADDRESSES[1:]]
    assert client.ran_code == ADDRESSES[:1]
    assert sorted(client.used_storage) == ADDRESSES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("importing", ["works", "fails", "hangs"])
def test_of_many_workers_all_import_dasktune_before_some_at_a_time_are_checked(
    tmp_path: Path, importing: str
) -> None:
    class Busy(Client):
        async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
            if args[1] is None and importing != "works":
                self.imported += workers
                if importing == "hangs":
                    await asyncio.sleep(1e6)
                raise OSError("one of the workers was lost")
            return await super().run(function, *args, workers=workers, on_error=on_error)

    many = {f"tcp://10.0.0.1:{number}": "10.0.0.1" for number in range(100)}
    found = {address: WorkerCapacity(address=address, host=host) for address, host in many.items()}
    client: Any = Busy()
    import_s = 0.01 if importing == "hangs" else None
    report = asyncio.run(preflight(client, checks(tmp_path), workers=found, import_s=import_s))
    assert client.imported == list(many)
    assert set(report.results) == set(many)
    checked = client.asked[1 if importing == "works" else 0 :]
    assert max(map(len, checked)) <= 32
    assert sorted(address for some in checked for address in some) == sorted(many)


def test_a_copy_that_cannot_be_deleted_is_no_fault_of_its_worker(tmp_path: Path) -> None:
    class RefusingStorage(Storage):
        """A storage in which this process may delete nothing, at first."""

        refuses = True

        def remove(self, name: str) -> None:
            if self.refuses and "reply" in name:
                removed.append(name)
                if len(removed) == len(ADDRESSES):
                    type(self).refuses = False
                raise PermissionError(name)
            super().remove(name)

    removed: list[str] = []
    given = dataclasses.replace(checks(tmp_path), storage=RefusingStorage(str(tmp_path)))
    client: Any = Client()
    report = asyncio.run(preflight(client, given, workers=workers()))
    assert all(report.results[address].shares for address in ADDRESSES)  # type: ignore[union-attr]
    assert len(set(removed)) == len(ADDRESSES)
    # They are deleted with the driver's own file in the end.
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_a_worker_writes_again_is_deleted(tmp_path: Path) -> None:
    class Late(Client):
        async def run(self, function: Any, *args: Any, workers: list[str], on_error: str) -> dict[str, Any]:
            if len(workers) > 1:
                self.given_up = args[1]
                raise OSError("the connection was lost, but the workers have got the call")
            if workers == ADDRESSES[2:]:
                common, own = self.given_up[ADDRESSES[1]]
                while len(deleted) < 2:
                    await asyncio.sleep(0.01)
                await self.answer(ADDRESSES[1], common, own)
            return await super().run(function, *args, workers=workers, on_error=on_error)

    class NotingStorage(Storage):
        def remove(self, name: str) -> None:
            super().remove(name)
            deleted.append(name)

    deleted: list[str] = []
    client: Any = Late()
    given = dataclasses.replace(checks(tmp_path), storage=NotingStorage(str(tmp_path)))
    report = asyncio.run(preflight(client, given, workers=workers()))
    assert set(report.results) == set(ADDRESSES)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_a_host_where_the_code_was_not_checked_check_it_themselves(tmp_path: Path) -> None:
    class Late(Client):
        async def answer(self, address: str, common: Any, own: Any) -> Any:
            return (
                OSError("no answer")
                if address == ADDRESSES[0]
                else await super().answer(address, common, own)
            )

    async def work() -> dict[str, str]:
        report = await preflight(client, checks(tmp_path), workers=workers())
        assert (report.hosts, set(report.unchecked), report.results) == ((), {ADDRESSES[0]}, {})
        assert client.ran_code == []
        admission = Admission(client, checks(tmp_path), report)
        await admission.examine({address: workers()[address] for address in ADDRESSES[1:]})
        return {address: worker.status for address, worker in admission(workers()).items()}

    client: Any = Late()
    assert asyncio.run(work()) == dict(zip(ADDRESSES, ("unchecked", "running", "running"), strict=True))
    assert sorted(client.ran_code) == ADDRESSES[1:]


def test_a_worker_that_fails_alone_is_refused_without_a_second_question(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Old(Client):
        async def answer(self, address: str, common: Any, own: Any) -> Any:
            return "0.0.1" if address == ADDRESSES[2] else await super().answer(address, common, own)

    async def work() -> dict[str, str]:
        report = await preflight(client, checks(tmp_path), workers=workers())
        admission = Admission(client, checks(tmp_path), report)
        await admission.examine(workers())
        return {address: worker.status for address, worker in admission(workers()).items()}

    client: Any = Old()
    assert asyncio.run(work()) == dict(zip(ADDRESSES, ("running", "running", "refused"), strict=True))
    assert len(client.asked) == 2
    assert f"the worker {ADDRESSES[2]} gets no trials: the workers' dasktune must be" in caplog.text


@pytest.mark.parametrize(
    ("declares", "gpus", "has_declared"),
    [(False, [], False), (True, [], True), (False, ["0"], True)],
)
def test_workers_are_read_again_only_if_one_has_declared_something(
    tmp_path: Path, declares: bool, gpus: list[str], has_declared: bool
) -> None:
    class WithGpus(Client):
        async def answer(self, address: str, common: Any, own: Any) -> Any:
            return {**await super().answer(address, common, own), "gpus": gpus}

    async def declare(*args: Any, **options: Any) -> None: ...

    async def work() -> bool:
        given = dataclasses.replace(checks(tmp_path), declare=declares)
        admission = Admission(client, given, declare=declare)
        await admission.examine(workers())
        return admission.has_declared

    client: Any = WithGpus()
    assert asyncio.run(work()) is has_declared


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
    assert sorted(address for asked in client.asked for address in asked) == sorted(ADDRESSES * 2)


def test_another_version_of_dasktune_is_refused(tmp_path: Path) -> None:
    client: Any = Client(version="0.0.1")
    with pytest.raises(PreflightError, match=r"got 0\.0\.1 on tcp://10\.0\.0\.1:4000"):
        asyncio.run(preflight(client, checks(tmp_path), workers=workers()))


def test_what_a_worker_may_have_declared_without_an_answer_is_recounted_later(tmp_path: Path) -> None:
    recounts: list[bool] = []

    async def declare(*args: Any, recount: bool, **options: Any) -> None:
        recounts.append(recount)
        if len(recounts) == 1:
            raise TimeoutError("the worker was busy, and declares it later")

    async def work() -> dict[str, str]:
        admission = Admission(client, checks(tmp_path), declare=declare)
        one = {ADDRESSES[0]: workers()[ADDRESSES[0]]}
        for _ in range(2):
            await admission.examine(one)
        # Another worker has the address now.
        admission({})
        await admission.examine(one)
        return {address: worker.status for address, worker in admission(one).items()}

    client: Any = Client()
    assert asyncio.run(work()) == {ADDRESSES[0]: "running"}
    assert recounts == [False, True, False]
