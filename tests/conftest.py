"""What holds for all tests: reproducible examples, and experiments that check themselves."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, settings
from leftover_processes import guarded_run, guarded_test
from s3_kit import Line, S3Server

# Dask reads it at its import, here and in the processes that tests start. Its profiler wakes up
# each worker a hundred times a second, also those that wait for other tests.
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")

# The same examples on every machine; on a slow one it may take its time to make and to try one.
settings.register_profile(
    "dasktune", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dasktune")

# They hold no doctests, and Python can import only one module of a name.
collect_ignore_glob = ["*conftest.py"]

#: See :func:`folder_scope`.
FOLDER = ExitStack()
LAST_FOLDER: dict[str, Path] = {}

TESTS = Path(__file__).parent
CLUSTER_TESTS = TESTS / "cluster"
#: Tests of what talks to Dask, without a cluster.
CORE_TESTS = [TESTS / kind / "cluster" for kind in ("unit", "component")]
#: The folders whose modules take longest. Their tests run first, because a process that begins a
#: long module at the end would run alone.
LONGEST_FIRST = (
    "chaos",
    "engines",
    "faults",
    "sklearn",
    "cluster",
    "compat",
    "examples",
    "browser",
    "security",
)
#: Coverage is measured in the other folders. Their tests alone reach what `make coverage` demands.
WITHOUT_COVERAGE = {TESTS / folder for folder in (*LONGEST_FIRST, "simulated", "storage")}


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
def _no_files_in_the_home_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let files with tokens go elsewhere, also those of processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def folder_scope() -> Iterator[ExitStack]:
    """What ends when the tests of a folder are over, and not with the run.

    The processes of an idle cluster would take a tenth of a processor from all tests that follow.
    """
    yield FOLDER
    FOLDER.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End what the tests of the last folder shared; its last test may have run again before."""
    if item.path.parent != LAST_FOLDER.get("path", item.path.parent):
        FOLDER.close()
    LAST_FOLDER["path"] = item.path.parent


@pytest.fixture
def complete_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the notice of a token be written before the test goes on, however busy the machine is."""
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
    """Mark tests as those of a cluster, as core, or as without coverage; the longest come first."""
    rank = {TESTS / folder: number for number, folder in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.parent, len(rank)))
    for item in items:
        if any(folder in item.path.parents for folder in CORE_TESTS):
            item.add_marker("core")
        if CLUSTER_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cluster)
        if item.path.parent in WITHOUT_COVERAGE and item.config.pluginmanager.has_plugin("pytest_cov"):
            item.add_marker("no_cover")
