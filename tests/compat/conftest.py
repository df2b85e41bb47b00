"""One cluster for all programs, which name none: they take the one that the process has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dasktune as tune


@pytest.fixture(scope="module")
def _cluster(folder_scope: Any) -> Any:
    from distributed import LocalCluster

    def start(stack: ExitStack) -> LocalCluster:
        return stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0"))

    return folder_scope.shared("cluster", start)


@pytest.fixture(scope="module")
def connected(_cluster: Any) -> Iterator[None]:
    """Let this be the cluster that the process is connected to."""
    from distributed import Client

    with Client(_cluster):
        yield


@pytest.fixture
def run_config(tmp_path: Path) -> Callable[..., tune.RunConfig]:
    return lambda **more: tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0, **more)
