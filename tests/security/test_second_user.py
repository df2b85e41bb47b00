"""A process of another user of the machine attacks drivers, workers, results and servers.

The other tests of this folder imitate another user by `os.chown`. Here a process of that user acts,
and the kernel decides what it may do. Only root can start it.
"""

from __future__ import annotations

import http.client
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from projection_kit import RecordFeed
from trial_run_kit import Driver, make_spec

from dasktune import RunConfig, Trainable
from dasktune.cli import main
from dasktune.control.secret_notice import secret_notice
from dasktune.control.server import ControlServer
from dasktune.dashboard.model.experiment_projection import ExperimentProjection
from dasktune.dashboard.server.experiment_source import ExperimentFolder, SingleExperiment
from dasktune.dashboard.server.live_experiment import LiveExperiment
from dasktune.dashboard.server.web import WebServer
from dasktune.logger import CSVLoggerCallback, JsonLoggerCallback
from dasktune.sklearn.fits.search_experiment import InProcessTuner
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.experiment.experiment_store import ExperimentStore
from dasktune.storage.fs import temp_dirs
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.data.shared_objects import SharedObject, frames_of, load

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0,
        reason="only root can start a process of another user",
    ),
    pytest.mark.usefixtures("complete_notices"),
]

#: The user id that most systems keep for a user without rights.
OTHER_UID = 65534

PATIENCE = 60.0

#: Started as root, so that it can read the standard library, wherever that is. The modules are
#: imported before the process becomes the second user.
BECOME = f"""
import encodings.idna, errno, http.client, os, pickle, socket, sys
os.umask(0)
os.chdir("/")
os.setgroups([])
os.setresgid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
os.setresuid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
assert os.geteuid() == {OTHER_UID}
arguments = sys.argv[1:]

def refused(act, *names):
    try:
        act(*names)
    except PermissionError:
        return True
    return False
"""


def second_user(code: str, *arguments: object) -> str:
    """Let a process of the second user run Python code; return what it prints."""
    command = [sys.executable, "-I", "-S", "-c", BECOME + code, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@contextmanager
def second_user_stays(code: str, *arguments: object) -> Iterator[str]:
    """Run Python code as the second user, and yield its first line; the process stays."""
    code += "\nsys.stdout.flush()\nsys.stdin.read()\n"
    command = [sys.executable, "-I", "-S", "-c", BECOME + code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0


def within_seconds(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread, and fail if it does not end."""
    results: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for ever"
    assert raised == []
    return results[0]


@pytest.fixture(params=["/tmp", "/dev/shm"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which every user may create names, and which every user can reach."""
    if not os.path.isdir(request.param):
        pytest.skip(f"the machine has no {request.param}")
    # Not below the directory of pytest, which only root may enter.
    place = Path(tempfile.mkdtemp(dir=request.param))
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    for entry in place.rglob("*"):
        if entry.is_fifo():
            with suppress(OSError):  # no thread waits
                os.close(os.open(entry, os.O_RDWR | os.O_NONBLOCK))
    shutil.rmtree(place)


@pytest.fixture
def mine(shared: Path) -> Path:
    """A private file of the driver's user."""
    private = shared / "private"
    private.write_text("mine")
    private.chmod(0o600)
    return private


# Shared temporary directories (finding 1)

PLANTS = {
    "pipe": "os.mkfifo(arguments[0], 0o666)",
    "link to a file": "os.symlink(arguments[1], arguments[0])",
    "link to nothing": "os.symlink('/nowhere', arguments[0])",
    "file": "open(arguments[0], 'wb').write(pickle.dumps('theirs'))",
    "directory": "os.mkdir(arguments[0], 0o777)",
    "socket": "socket.socket(socket.AF_UNIX).bind(arguments[0])",
}


def share_object(place: Path) -> None:
    SharedObject(frames_of([1]), memory_directory=str(place)).path()


SWEEPS: dict[str, Callable[[Path], object]] = {
    "dasktune-checkpoints-x": lambda place: temp_dirs.make_directory(),
    "dasktune-shared-x": share_object,
}


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_name_that_a_second_user_makes_neither_blocks_a_process_nor_costs_a_file(
    shared: Path, mine: Path, name: str, plant: str
):
    second_user(PLANTS[plant], shared / name, mine)
    before = os.lstat(shared / name)
    within_seconds(lambda: SWEEPS[name](shared))
    after = os.lstat(shared / name)
    assert (after.st_ino, after.st_uid, after.st_mode) == (before.st_ino, OTHER_UID, before.st_mode)
    assert mine.read_text() == "mine"


def test_a_second_user_reads_no_temporary_checkpoint_and_no_shared_object(shared: Path):
    checkpoint = Checkpoint.temporary()
    Path(checkpoint.path, "weights").write_text("mine")
    held = SharedObject(frames_of({"mine": 1}), memory_directory=str(shared))
    told = second_user(
        "print(refused(os.listdir, arguments[0]), refused(open, arguments[1]), refused(open, arguments[2]))",
        checkpoint.path,
        f"{checkpoint.path}/weights",
        held.path(),
    )
    held.close()
    assert told == "True True True"


def test_a_pickle_of_a_second_user_in_place_of_a_shared_object_is_not_loaded(shared: Path):
    held = SharedObject(frames_of({"mine": 1}), memory_directory=str(shared))
    path = Path(held.path())
    path.unlink()  # as `systemd-logind` does
    second_user(PLANTS["file"], path)
    with pytest.raises(PermissionError, match=f"owner {OTHER_UID}"):
        load(path)


def test_a_directory_of_a_second_user_in_place_of_a_deleted_one_is_not_used(shared: Path):
    root = Path(temp_dirs.make_directory()).parent
    shutil.rmtree(root)  # as a system cleaner does
    second_user(PLANTS["directory"], root)
    assert Path(temp_dirs.make_directory()).parent != root
    assert list(root.iterdir()) == []


# Ports (finding 2)

LISTEN = """
family, address, option = socket.AF_INET6, arguments[0], arguments[1]
server = socket.socket(family)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
if option:
    server.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
try:
    server.bind((address, int(arguments[2])))
    server.listen()
    print(server.getsockname()[1])
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def dashboard(**options: Any) -> WebServer:
    live = LiveExperiment(lambda: ExperimentProjection(metric="loss", mode="min"), RecordFeed())
    return WebServer(SingleExperiment(live), **options)


def control(**options: Any) -> ControlServer:
    return ControlServer(None, **options)  # type: ignore[arg-type]  # no command is sent


@pytest.mark.parametrize("server", [dashboard, control])
def test_a_port_at_which_a_second_user_listens_is_not_used(server: Callable[..., Any]):
    with second_user_stays(LISTEN, "::1", "", 0) as port:
        if not port.isdecimal():
            pytest.skip(f"the second user cannot listen at ::1: {port}")
        with suppress(OSError), closing(server(port=int(port))) as ours:
            assert ours.port not in (0, int(port))


@pytest.mark.parametrize("option", ["", "SO_REUSEADDR", "SO_REUSEPORT"])
@pytest.mark.parametrize("server", [dashboard, control])
def test_a_second_user_cannot_listen_at_the_port_of_a_server(server: Callable[..., Any], option: str):
    with closing(server()) as ours:
        told = second_user(LISTEN, "::1", option, ours.port)
    assert told in ("EADDRINUSE", "EACCES", "EADDRNOTAVAIL", "EAFNOSUPPORT")


# Servers (findings 4 and 6)

GET = """
line = http.client.HTTPConnection("127.0.0.1", int(arguments[0]), timeout=60)
line.request("GET", arguments[1])
answer = line.getresponse()
print(answer.status, len(answer.read()))
"""


def test_a_second_user_reads_a_dashboard_without_buttons_and_no_other_server():
    with closing(dashboard()) as free, closing(dashboard(commander=lambda: None)) as guarded:
        assert second_user(GET, free.port, "/metadata").startswith("200 ")
        for path in ("/", "/metadata", "/ws", urlsplit(guarded.link).path):
            assert second_user(GET, guarded.port, path).startswith("403 "), path
    with closing(control()) as server:
        assert second_user(GET, server.port, "/api/v1/openapi.json").startswith("401 ")


IDLE = """
place, lines = ("127.0.0.1", int(arguments[0])), []
while len(lines) < int(arguments[1]):
    lines += [socket.create_connection(place) for _ in range(33)]
    # The answer shows that the server has accepted the others. A full queue would delay the next.
    last = http.client.HTTPConnection(*place, timeout=60)
    last.request("GET", "/other")
    last.getresponse().read()
    last.close()
print(len(lines))
"""


def test_idle_connections_of_a_second_user_do_not_lock_the_owner_of_a_token_out():
    # Otherwise the idle connections would end, and the owner would only wait.
    patient = control(request_timeout_s=10 * PATIENCE)
    with closing(patient) as server, second_user_stays(IDLE, server.port, 132) as lines:
        assert lines == "132"
        owner = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        owner.request("GET", "/api/v1/openapi.json", headers={"Authorization": f"Bearer {server.token}"})
        assert owner.getresponse().status == 200
        owner.close()


# Results (findings 5 and 7)


def new_experiment(path: Path) -> None:
    store = ExperimentStore(Storage(path))
    created = "2026-11-22T16:49:14+00:00"
    store.create({"name": path.name, "metric": "loss", "mode": "min", "created": created})
    store.begin()
    store.close()


ENTRIES = """
os.mkfifo(f"{arguments[0]}/pipe", 0o666)
os.symlink(arguments[1], f"{arguments[0]}/link")
os.symlink("loop", f"{arguments[0]}/loop")
for name in ("spec-pipe", "spec-link", "journal-pipe"):
    os.mkdir(f"{arguments[0]}/{name}", 0o777)
os.mkfifo(f"{arguments[0]}/spec-pipe/experiment.json", 0o666)
os.symlink("/dev/zero", f"{arguments[0]}/spec-link/experiment.json")
open(f"{arguments[0]}/journal-pipe/experiment.json", "w").write("{}")
os.mkfifo(f"{arguments[0]}/journal-pipe/journal", 0o666)
"""


def test_entries_of_a_second_user_hide_no_experiment(
    shared: Path, mine: Path, capsys: pytest.CaptureFixture[str]
):
    new_experiment(shared / "good")
    second_user(ENTRIES, shared, mine)

    def look() -> list[str]:
        folder = ExperimentFolder(Storage(shared))
        assert folder.find("good") is not None
        main(["ls", str(shared)])
        while folder.refresh():
            pass
        return [one.name for one in folder.summaries() if one.state != "unreadable"]

    assert "good" in within_seconds(look)
    assert "good" in capsys.readouterr().out


@pytest.mark.parametrize("plant", ["pipe", "link to a file", "link to nothing"])
def test_the_output_of_a_trial_goes_through_no_name_of_a_second_user(
    shared: Path, mine: Path, plant: str, caplog: pytest.LogCaptureFixture
):
    trial = shared / "exp" / "trials" / "a"
    trial.mkdir(parents=True)
    trial.chmod(0o777)
    second_user(PLANTS[plant], trial / "output", mine)

    def train(config: dict[str, Any]) -> None:
        print("output")

    def run() -> None:
        storage = Storage(shared / "exp")
        Driver(train, storage=storage, trial_id="a", trial_dir="a", log_files=("output", "output")).end()

    within_seconds(run)
    assert mine.read_text() == "mine"
    assert os.lstat(trial / "output").st_uid == OTHER_UID
    assert "the output of trial a is not kept" in caplog.text


def test_a_trial_writes_into_no_directory_behind_a_link_of_a_second_user(shared: Path, mine: Path):
    from dasktune.errors import StorageError
    from dasktune.isolation.environment import in_trial_directory

    trials = shared / "exp" / "trials"
    trials.mkdir(parents=True)
    trials.chmod(0o777)
    second_user(PLANTS["link to a file"], trials / "a", shared)
    spec = make_spec(storage=Storage(shared / "exp"), trial_id="a", trial_dir="a", chdir=True)
    with pytest.raises(StorageError, match="got a link"), in_trial_directory(spec):
        pass


class Step(Trainable):
    def step(self) -> dict[str, Any]:
        return {"done": True}


def run_experiment_at(place: Path) -> None:
    InProcessTuner(
        Step,
        param_space={"x": 1.0},
        run_config=RunConfig(
            name="run",
            storage_path=str(place),
            verbose=0,
            callbacks=[CSVLoggerCallback(), JsonLoggerCallback()],
        ),
    ).fit()


def test_an_experiment_in_a_directory_that_a_second_user_made_causes_a_warning(
    shared: Path, caplog: pytest.LogCaptureFixture
):
    second_user("os.mkdir(arguments[0], 0o755)", shared / "run")
    run_experiment_at(shared)
    assert f"it belongs to user {OTHER_UID}" in caplog.text


CHANGE = """
changed = []
for folder, folders, files in os.walk(arguments[0]):
    changed += [name for name in files if not refused(open, os.path.join(folder, name), "r+")]
    changed += [folder] * (not refused(os.mkdir, os.path.join(folder, "theirs")))
print(changed)
"""


@pytest.mark.parametrize(("umask", "readable"), [(0o077, False), (0o022, True)])
def test_a_second_user_changes_no_experiment_and_reads_it_as_the_umask_says(
    shared: Path, umask: int, readable: bool
):
    before = os.umask(umask)
    try:
        run_experiment_at(shared)
    finally:
        os.umask(before)
    assert second_user(CHANGE, shared / "run") == "[]"
    told = second_user("print(not refused(open, arguments[0]))", shared / "run" / "experiment.json")
    assert told == str(readable)


# Tokens (finding 8)

SECRET = "TuneClient('http://127.0.0.1:1', token='s3cret')"

PEEK = """
print(refused(open, arguments[0]), refused(os.listdir, os.path.dirname(arguments[0])))
"""


@pytest.mark.parametrize("made", ["by the driver", "by the second user"])
def test_a_second_user_reads_no_file_with_a_token(shared: Path, made: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(shared / "state"))
    if made == "by the second user":
        second_user(
            "os.mkdir(arguments[0], 0o777); os.mkdir(arguments[0] + '/dasktune', 0o777)", shared / "state"
        )
    stream = io.StringIO()
    with secret_notice(stream, "Control", SECRET):
        path = Path(stream.getvalue().partition("see ")[2].partition(",")[0])
        assert path.read_text() == f"{SECRET}\n"
        hidden, private = second_user(PEEK, path).split()
    assert hidden == "True"
    # The file is in the directory of temporary files if the usual one is not the user's.
    assert private == str(made == "by the driver")
    assert path.is_relative_to(shared / "state") == (made == "by the driver")
