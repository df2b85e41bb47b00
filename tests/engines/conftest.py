"""Engines of other projects that start Dask clusters: SLURM, SSH, Dask Gateway."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import cluster_kit
import engine_kit
import pytest
import slurm_kit
from engine_kit import has_package, skip_unless
from slurm_kit import Slurm

# A worker of another process cannot import these directories.
cloudpickle.register_pickle_by_value(cluster_kit)
cloudpickle.register_pickle_by_value(engine_kit)

ENGINES = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder start a cluster, and take long."""
    for item in items:
        if item.path.parent == ENGINES:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def slurm_daemons(folder_scope: Any) -> Slurm:
    """A SLURM that all tests share."""
    missing = [name for name in slurm_kit.PROGRAMS if slurm_kit.program(name) is None]
    skip_unless(not missing, f"SLURM is needed, which .ci/engines installs: no {', '.join(missing)}")
    skip_unless(os.geteuid() == 0, "only root can start the daemons of SLURM")
    slurm: Slurm = folder_scope.shared("slurm", lambda stack: stack.enter_context(closing(Slurm())))
    return slurm


@pytest.fixture
def slurm(slurm_daemons: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """A SLURM without jobs, which all commands of this process find."""
    skip_unless(has_package("dask_jobqueue"), "dask-jobqueue is needed, which .ci/engines installs")
    for name, value in slurm_daemons.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm_daemons
    slurm_daemons.cancel_all()
