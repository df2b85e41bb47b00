"""Processes that import modules once and fork ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
from process_run_kit import PATIENCE, make_spec

from dasktune.isolation.process import ChildDied, ChildProcess
from dasktune.isolation.ranks.fork_server import ForkServer, ForkServerLost, ForkServers, can_fork
from dasktune.isolation.ranks.fork_server_process import fork_refusal
from dasktune.isolation.ranks.rank_messages import RankBegan, RankEnded, RunRank
from dasktune.trainable.data.child_payload import ChildPayload
from dasktune.trainable.ranks import RankInfo, RankSettings

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system has no descriptors of processes")

#: A module that takes long to import, as it were.
SLOW = """
import os
import numpy
imported_by = os.getpid()
threads = os.environ["OMP_NUM_THREADS"]
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a module, which the servers can import."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    """Return the servers of a worker, which are killed after the test."""
    servers = ForkServers()
    yield servers
    servers.close()


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "3", **more}


def ready(servers: ForkServers, *modules: str, **more: str) -> ForkServer:
    """Return a server that has imported the modules."""
    server = servers.acquire(environment(**more), modules)
    preloaded = server.wait_until_ready(lambda: True)
    assert preloaded is not None
    assert (preloaded.error, preloaded.refusal) == (None, "")
    return server


def start(
    server: ForkServer | None, place: Path, function: Any, rank: int = 0, pythonpath: str | None = None
) -> ChildProcess:
    """Start a rank that calls a function: a fork of the server, or a fresh interpreter."""
    own = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    variables = {"RANK": str(rank), "OMP_NUM_THREADS": "3", **own}
    if server is None:
        process = ChildProcess(variables, module="dasktune.isolation.ranks.rank_process")
    else:
        process = ChildProcess(variables, start=server.fork)
    payload = ChildPayload(
        code=cloudpickle.dumps({"trainable": _distributed(function)}),
        config=cloudpickle.dumps({"config": {"place": str(place)}}),
    )
    spec = make_spec(place, ranks=RankSettings())
    info = RankInfo(world_rank=rank, world_size=2)
    process.post(RunRank(spec=spec, info=info, payload=payload, lost_after_s=600.0))
    return process


def _distributed(function: Any) -> Any:
    import dasktune as tune

    return tune.with_ranks(function, 2)


def ended(process: ChildProcess) -> None:
    """Wait until a rank has ended well."""
    assert isinstance(process.receive(), RankBegan)
    assert process.receive() == RankEnded()
    process.stop()
    assert process.finished


def describe(config: dict[str, Any]) -> None:
    import numpy as np

    before = "slow_module" in sys.modules
    import slow_module  # type: ignore[import-not-found]

    seen = {
        "before": before,
        "imported_by": slow_module.imported_by,
        "threads": slow_module.threads,
        "parent": os.getppid(),
        "is_leader": os.getpgid(0) == os.getpid(),
        "is_blocked": signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "is_main": threading.current_thread() is threading.main_thread(),
        # As users do it.
        "draw": int(np.random.randint(2**31)),  # noqa: NPY002
    }
    Path(config["place"], f"seen-{os.environ['RANK']}").write_text(json.dumps(seen))


def test_ranks_are_forks_of_a_process_that_has_imported_the_modules(
    servers: ForkServers, write: Write, tmp_path: Path
) -> None:
    server = ready(servers, write("slow_module", SLOW))
    both = [start(server, tmp_path, describe, rank) for rank in range(2)]
    for process in both:
        ended(process)
    seen = [json.loads((tmp_path / f"seen-{rank}").read_text()) for rank in range(2)]
    for one in seen:
        assert one["before"]
        assert one["imported_by"] == one["parent"] == server.pid
        # The module has read the number of threads when it was imported.
        assert one["threads"] == "3"
        assert one["is_leader"]
        assert one["is_main"]
        assert not one["is_blocked"]
    # Fresh processes draw different numbers, too.
    assert seen[0]["draw"] != seen[1]["draw"]


#: A module that changes the environment, as some libraries do.
CHANGES = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
"""


def import_more(config: dict[str, Any]) -> None:
    import other_module  # type: ignore[import-not-found]

    seen = [other_module.place, os.environ["OMP_NUM_THREADS"], os.environ["RANK"]]
    Path(config["place"], "seen").write_text(json.dumps(seen))


@pytest.mark.parametrize("is_forked", [True, False])
def test_a_rank_imports_from_its_own_pythonpath_and_keeps_what_modules_set(
    servers: ForkServers, tmp_path: Path, is_forked: bool
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "changing_module.py").write_text(CHANGES)
    (own / "other_module.py").write_text("import changing_module\nplace = __file__")
    path = os.pathsep.join([str(own), os.environ.get("PYTHONPATH", "")])
    server = ready(servers, "changing_module", PYTHONPATH=path) if is_forked else None
    ended(start(server, tmp_path, import_more, pythonpath=path))
    assert json.loads((tmp_path / "seen").read_text()) == [str(own / "other_module.py"), "1", "0"]


def wait_for_ever(config: dict[str, Any]) -> None:
    child = os.fork()
    if child:
        part = Path(config["place"], "part")
        part.write_text(str(child))
        part.rename(Path(config["place"], "child"))
    while True:
        # A signal that has a handler ends a pause, and the function must not return then.
        signal.pause()


def test_a_killed_rank_is_reaped_with_what_it_has_forked(servers: ForkServers, tmp_path: Path) -> None:
    server = ready(servers, "json")
    process = start(server, tmp_path, wait_for_ever)
    assert isinstance(process.receive(), RankBegan)
    child = _number(tmp_path / "child")
    os.kill(process.pid, signal.SIGTERM)  # the rank has a handler
    assert process.is_alive
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ChildDied) as death:
        process.receive()
    assert "died of signal 9 (SIGKILL)" in death.value.error.message
    assert process.finished
    _until(lambda: not psutil.pid_exists(process.pid) and not _lives(child))
    # The server forks on.
    ended(start(server, tmp_path, print))


def become_daemon(config: dict[str, Any]) -> None:
    """Fork a process that leaves the process group and runs no other program."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon:
            os.write(writing, str(daemon).encode())
            os._exit(0)
        # As daemons do. It would hold the connection of the rank open.
        os.closerange(3, 256)
        signal.pause()
    part = Path(config["place"], f"part-{os.getpid()}")
    part.write_bytes(os.read(reading, 20))
    part.rename(Path(config["place"], f"daemon-{os.environ['RANK']}"))
    while True:
        signal.pause()


def test_a_fork_of_a_killed_rank_that_has_left_its_group_is_killed_and_those_of_others_are_not(
    servers: ForkServers, tmp_path: Path
) -> None:
    server = ready(servers, "json")
    ranks = [start(server, tmp_path, become_daemon, rank) for rank in range(2)]
    daemons = [_number(tmp_path / f"daemon-{rank}") for rank in range(2)]
    for rank, process in enumerate(ranks):
        assert isinstance(process.receive(), RankBegan)
        assert _lives(daemons[rank])
        process.kill()
        with pytest.raises(ChildDied):
            process.receive()
        assert [_lives(one) for one in daemons] == [other > rank for other in range(2)]
    # The server has another mark.
    ended(start(server, tmp_path, print))


def test_ranks_die_with_their_server_and_the_next_trial_gets_a_new_one(
    servers: ForkServers, tmp_path: Path
) -> None:
    server = ready(servers, "json")
    process = start(server, tmp_path, wait_for_ever)
    assert isinstance(process.receive(), RankBegan)
    child = _number(tmp_path / "child")
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ChildDied) as death:
        process.receive()
    assert "SIGKILL" in death.value.error.message
    _until(lambda: not _lives(process.pid) and not _lives(child))
    servers.release(server)
    with pytest.raises(ForkServerLost):
        start(server, tmp_path, print)
    second = ready(servers, "json")
    assert second is not server
    ended(start(second, tmp_path, print))


#: A module that starts two processes when it is imported, one of them in a group of its own.
STARTS = """
import pathlib, subprocess, sys
command = [sys.executable, "-c", "import signal; signal.pause()"]
children = [subprocess.Popen(command, start_new_session=leaves) for leaves in (False, True)]
path = pathlib.Path(__file__).with_name("started")
path.write_text(" ".join(str(child.pid) for child in children))
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_a_module_has_started_ends_with_the_server(
    servers: ForkServers, write: Write, tmp_path: Path, how: str
) -> None:
    server = ready(servers, write("starting_module", STARTS))
    children = [int(one) for one in (tmp_path / "started").read_text().split()]
    # They do not belong to a rank.
    ended(start(server, tmp_path, print))
    assert all(map(_lives, children))
    if how == "closed":
        servers.close()
    else:
        os.kill(server.pid, signal.SIGKILL)
    _until(lambda: not any(map(_lives, children)))
    assert not server.is_usable


#: A worker that opens a fork server, and waits.
WORKER = """
import os, signal, sys
from dasktune.isolation.ranks.fork_server import ForkServers
server = ForkServers().acquire(os.environ, ["starting_module"])
assert server.wait_until_ready(lambda: True) is not None
print(server.pid, flush=True)
signal.pause()
"""


def test_what_a_module_has_started_ends_with_the_worker(write: Write, tmp_path: Path) -> None:
    write("starting_module", STARTS)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        server = int(worker.stdout.readline())
        children = [int(one) for one in (tmp_path / "started").read_text().split()]
        assert all(map(_lives, children))
        worker.kill()
    _until(lambda: not any(map(_lives, [server, *children])))


def import_late(config: dict[str, Any]) -> None:
    import late_module  # type: ignore[import-not-found]

    Path(config["place"], "seen").write_text(late_module.__file__)


def test_a_rank_imports_from_a_directory_that_is_younger_than_its_server(
    servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "late"
    # First in the path, so the server looks for its own modules there.
    monkeypatch.syspath_prepend(str(place))
    server = ready(servers, "json")
    place.mkdir()
    (place / "late_module.py").touch()
    ended(start(server, tmp_path, import_late))
    assert (tmp_path / "seen").read_text() == str(place / "late_module.py")


IGNORES = "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)"


def test_a_server_whose_children_the_system_reaps_lives_on(
    servers: ForkServers, write: Write, tmp_path: Path
) -> None:
    # Also a worker may have inherited that, and its fork server from it.
    server = ready(servers, write("ignoring_module", IGNORES))
    for rank in range(2):
        ended(start(server, tmp_path, print, rank))
    assert server.is_usable


def exit_early(config: dict[str, Any]) -> None:
    os._exit(7)


def test_the_exit_status_of_a_rank_is_known(servers: ForkServers, tmp_path: Path) -> None:
    process = start(ready(servers, "json"), tmp_path, exit_early)
    assert isinstance(process.receive(), RankBegan)
    with pytest.raises(ChildDied) as death:
        process.receive()
    assert "exited with code 7" in death.value.error.message


def test_a_module_that_cannot_be_imported_is_an_error(servers: ForkServers, write: Write) -> None:
    server = servers.acquire(environment(), [write("broken_module", "raise ValueError('no device')")])
    preloaded = server.wait_until_ready(lambda: True)
    assert preloaded is not None
    assert preloaded.error is not None
    assert "no device" in preloaded.error.message
    assert not server.is_usable
    # It may have been mended meanwhile.
    write("broken_module", "")
    assert servers.acquire(environment(), ["broken_module"]).wait_until_ready(lambda: True) is not None


THREAD = (
    "import threading\nthreading.Thread(target=threading.Event().wait, name='watch', daemon=True).start()"
)


@pytest.mark.parametrize("modules", [["threaded_module"], []], ids=["preload", "start"])
def test_a_process_with_threads_does_not_fork_and_is_not_started_again(
    servers: ForkServers,
    write: Write,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    modules: list[str],
) -> None:
    # Python itself imports `sitecustomize`, with which profilers start.
    write(modules[0] if modules else "sitecustomize", THREAD)
    given = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    server = servers.acquire(given, modules)
    preloaded = server.wait_until_ready(lambda: True)
    assert preloaded is not None
    assert "has threads (watch)" in preloaded.refusal
    assert f"ranks start as fresh interpreters: {preloaded.refusal}" in caplog.text
    _until(lambda: not _lives(server.pid))
    assert servers.acquire(given, modules) is server


def test_a_process_that_has_a_device_open_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    assert fork_refusal("/dev/zero") == ""
    with open("/dev/zero", "rb"):
        assert "has opened a GPU" in fork_refusal("/dev/zero")


#: A module after whose import the system has no room for one more process.
FULL = """
import os
def fork():
    raise BlockingIOError("Resource temporarily unavailable")
os.fork = fork
"""


def test_a_fork_for_which_there_is_no_room_leaves_no_file_open(
    servers: ForkServers, write: Write, tmp_path: Path
) -> None:
    server = ready(servers, write("full_module", FULL))
    files = Path(f"/proc/{server.pid}/fd")
    before = sorted(os.listdir(files))
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        start(server, tmp_path, print)
    assert sorted(os.listdir(files)) == before


def test_a_server_whose_trial_is_killed_is_not_waited_for(servers: ForkServers, write: Write) -> None:
    server = servers.acquire(environment(), [write("endless_module", "import signal\nsignal.pause()")])
    looks = iter([True, True, False])
    assert server.wait_until_ready(lambda: next(looks)) is None
    # Another trial waits for the same one, but none begins to wait for one that all have left.
    assert servers.acquire(environment(), ["endless_module"]) is server
    for _ in range(2):
        servers.release(server)
    assert servers.acquire(environment(), ["endless_module"]) is not server
    servers.close()
    assert not _lives(server.pid)
    with pytest.raises(OSError, match="has ended on this worker"):
        servers.acquire(environment(), [])


def test_a_server_that_dies_while_it_imports_is_noticed(servers: ForkServers, write: Write) -> None:
    module = write("deadly_module", "import os\nos.kill(os.getpid(), 9)")
    with pytest.raises(ForkServerLost, match="that forks the ranks has ended with status -9"):
        servers.acquire(environment(), [module]).wait_until_ready(lambda: True)


def test_a_server_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    with closing(ForkServers(partial(ForkServer, answer_limit_s=0.2))) as servers:
        server = ready(servers, "json")
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(ForkServerLost, match=r"has not answered for 0\.2 s"):
            start(server, tmp_path, print)
        assert not _lives(server.pid)


def test_unused_servers_of_other_environments_are_closed(servers: ForkServers) -> None:
    first = servers.acquire(environment(), ["json"])
    used = servers.acquire(environment(A="1"), ["json"])
    assert _lives(first.pid)
    servers.release(first)
    assert servers.acquire(environment(A="1"), ["json"]) is used
    assert _lives(first.pid)
    servers.acquire(environment(A="2"), ["json"])
    _until(lambda: not _lives(first.pid))
    assert _lives(used.pid)


def test_a_server_that_ends_late_delays_no_other_trial() -> None:
    were_released: list[bool] = []

    class Late(ForkServer):
        def close(self) -> None:
            # Another trial, whose server the worker's event loop releases, ends meanwhile.
            other = threading.Thread(target=servers.release, args=(used,), daemon=True)
            other.start()
            other.join(PATIENCE)
            were_released.append(not other.is_alive())
            super().close()

    with closing(ForkServers(Late)) as servers:
        unused, used = (servers.acquire(environment(A=value), ["json"]) for value in ("1", "2"))
        servers.release(unused)
        servers.acquire(environment(A="3"), ["json"])
        assert were_released == [True]
        assert not _lives(unused.pid)


def _number(path: Path) -> int:
    _until(path.exists)
    return int(path.read_text())


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _until(condition: Callable[[], Any]) -> None:
    ready = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        ready.wait(0.01)
    raise AssertionError("it has not come about")
