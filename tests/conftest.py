"""What holds for all tests: reproducible examples, and experiments that check themselves."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings
from leftover_processes import guarded_run, guarded_test
from s3_kit import Line, S3Server

# Dask reads them at its import, here and in the processes that tests start. An idle worker and an
# idle scheduler take a tenth of the processor time without the profiler, which wakes up a hundred
# times a second, and with fewer looks at the loop, the memory and the machine.
DASK_SETTINGS = {
    "WORKER__PROFILE__ENABLED": "False",
    "WORKER__MEMORY__MONITOR_INTERVAL": "1s",
    "ADMIN__TICK__INTERVAL": "1s",
    "ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
}
for _name, _setting in DASK_SETTINGS.items():
    os.environ.setdefault(f"DASK_DISTRIBUTED__{_name}", _setting)

# OpenMP and BLAS read it when they are imported, which is later. Their threads wait for each other
# in busy loops. With a process of the tests on each processor, the tests of `WarmStart`, which
# fits boosted trees, took 50 times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore Ctrl-C; every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine; on a slow one it may take its time to make and to try one.
settings.register_profile(
    "dasktune", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dasktune")

#: What searches import on workers. Packages that are not installed are left out.
SEARCH_MODULES = ("dasktune.sklearn", "sklearn.linear_model", "pandas", "dask.array", "dask.dataframe")

# They hold no doctests, and Python can import only one module of a name.
collect_ignore_glob = ["*conftest.py"]

T = TypeVar("T")

TESTS = Path(__file__).parent
CLUSTER_TESTS = TESTS / "cluster"
#: Tests of what talks to Dask, without a cluster.
CORE_TESTS = [TESTS / kind / "cluster" for kind in ("unit", "component")]
#: The modules, and the folders of modules, that take longest. Their tests run first, because a
#: process that begins a long module at the end would run alone.
LONGEST_FIRST = (
    "chaos",
    "engines",
    "examples",
    "sklearn",
    "browser",
    "cluster/test_distributed_trials.py",
    "cluster/test_signals_at_every_moment.py",
    "cluster/test_progress_on_screen.py",
    "faults",
    "cluster",
    "compat",
    "security",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the check of how long unit tests take."""
    config.pluginmanager.import_plugin("unit_seconds")


@pytest.fixture(autouse=True, scope="module")
def _experiments_validate_each_event(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a contradiction show in the event that caused it, not where it is noticed much later."""
    from dasktune.experiment import ExperimentMachine

    validated = request.node.get_closest_marker("unvalidated") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperimentMachine, "validate_each_event", validated)
        yield


@pytest.fixture(autouse=True)
def _empty_memory_stores() -> Iterator[None]:
    """Forget what a test leaves in `memory://`: each listing there looks at all files of all."""
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """Let Dask forget the clients that a test has closed in another order than it has opened them.

    Each client restores the setting that it has found, so the last one may restore that of a client
    which has been closed before. Dask would then look for a client in all tests that follow.
    """
    yield
    if distributed := sys.modules.get("distributed"):
        try:
            distributed.default_client()
        except ValueError:
            sys.modules["dask"].config.config.pop("scheduler", None)


@pytest.fixture(autouse=True, scope="session")
def _local_clusters_start_quickly() -> Iterator[None]:
    """Let the workers of a `LocalCluster` be forks of a process that has imported what they need.

    Those of the programs that tests start begin as everybody's do.
    """
    import dask
    import distributed.utils

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        # Dask chooses what is imported first, once. The process starts with the first worker.
        forks = distributed.utils.get_mp_context()
        forks.set_forkserver_preload(["distributed", "dasktune.cluster.driver.launch", *SEARCH_MODULES])
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_files_in_the_home_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let files with tokens go elsewhere, also those of processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


class FolderScope:
    """Keeps what the tests of a folder share until a test of another folder begins.

    The processes of an idle cluster would take a tenth of a processor from all tests that follow.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._made: dict[str, Any] = {}
        self._stack = ExitStack()

    def begin(self, folder: Path) -> None:
        """Begin a test. The last one of another folder has run for the last time now."""
        if folder != self._folder:
            self.close()
            self._folder = folder

    def shared(self, name: str, make: Callable[[ExitStack], T]) -> T:
        """Return what `make` has made in this folder; the stack ends it."""
        if name not in self._made:
            self._made[name] = make(self._stack)
        made: T = self._made[name]
        return made

    def close(self) -> None:
        """End all."""
        self._made.clear()
        self._stack.close()


FOLDER_SCOPE = FolderScope()


@pytest.fixture(scope="session")
def folder_scope() -> Iterator[FolderScope]:
    """For fixtures of modules whose value the tests of a folder share."""
    yield FOLDER_SCOPE
    FOLDER_SCOPE.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End what the tests of the last folder have shared."""
    FOLDER_SCOPE.begin(item.path.parent)


@pytest.fixture
def complete_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the notice of a token be written before the test continues, even on a busy machine."""
    from dasktune.progress import background_stream

    monkeypatch.setattr(background_stream, "PROMPT_SECONDS", 120.0)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.close()


@pytest.fixture
def line(s3: S3Server) -> Iterator[Line]:
    """A line to the S3 server that a test may disturb."""
    line = Line(s3.port)
    yield line
    line.close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without slow tests if only these run: each process would import all files."""
    if config.option.markexpr.partition(" ")[0] != "slow" or collection_path.suffix != ".py":
        return None
    folders = [one for one in collection_path.parents if TESTS in one.parents]
    # The marks of a folder are in its conftest.
    marking = [collection_path, *(folder / "conftest.py" for folder in folders)]
    is_slow = any("mark.slow" in one.read_text(encoding="utf-8") for one in marking if one.exists())
    return None if is_slow else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while tests are collected: it took a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, Any, Any]:
    """Look for no doctests in the tests themselves: that takes a third of a collection."""
    collectors = yield
    return [one for one in collectors if type(one).__name__ != "DoctestModule"]


@pytest.fixture(autouse=True, scope="session")
def _no_process_outlives_the_tests() -> Iterator[None]:
    with guarded_run():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let a test that fails end the processes that it has started; fixtures end their own."""
    with guarded_test(item.nodeid):
        yield


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_that_of_the_module() -> None:
    """Let a garbage collection look only at what the tests of this module have made.

    The thousands of collected tests, and what earlier modules keep, would take a second each time.
    """
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as those of a cluster, as core or as exhaustive; the longest come first."""
    rank = {TESTS / name: number for number, name in enumerate(LONGEST_FIRST)}

    # To look at the parents of each item's path took a tenth of a collection.
    @functools.cache
    def facts_of(module: Path) -> tuple[int, list[str]]:
        """Return the rank of a module, and the marks of its tests."""
        folder = module.parent
        marks = []
        if any(one in (folder, *folder.parents) for one in CORE_TESTS):
            marks.append("core")
        if CLUSTER_TESTS in (folder, *folder.parents):
            marks.append("cluster")
        return rank.get(module, rank.get(folder, len(rank))), marks

    items.sort(key=lambda item: facts_of(item.path)[0])
    for item in items:
        for mark in facts_of(item.path)[1]:
            item.add_marker(mark)
        if is_slow_repetition(item):
            item.add_marker("exhaustive")


def is_slow_repetition(item: pytest.Item) -> bool:
    """Whether a test is slow with these values, and quick with others. Tests of S3 repeat none."""
    spec: Any = getattr(item, "callspec", None)
    is_slow = spec is not None and any(mark.name == "slow" for mark in spec.marks)
    return is_slow and "s3" not in spec.params.values()
