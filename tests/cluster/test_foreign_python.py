"""Workers that run another Python than the driver.

They need an interpreter of another minor version with ``distributed`` and dasktune's dependencies:
``DASKTUNE_OTHER_PYTHON=/path/to/python3.12``.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import (
    Fleet,
    fitting,
    journal,
    kill,
    note,
    notes,
    run_config,
    statuses,
    until,
    wait_for_file,
)

import dasktune as tune
from dasktune.errors import PreflightError

OTHER = os.environ.get("DASKTUNE_OTHER_PYTHON", "")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    # Dask warns of the other Python, too.
    pytest.mark.filterwarnings("ignore:Mismatched versions"),
    pytest.mark.skipif(not OTHER, reason="DASKTUNE_OTHER_PYTHON names no interpreter"),
]


@contextmanager
def foreigner(fleet: Fleet, directory: Path) -> Iterator[None]:
    """Add a worker of the other Python, which can import dasktune; it must live to the end."""
    root = str(Path(__file__).parents[2])
    program = "from distributed.cli.dask_worker import main; main()"
    flags = ["--nthreads=1", "--no-dashboard", "--memory-limit=0", "--no-nanny", "--host=127.0.0.1"]
    with fleet.client() as client, (directory / "foreigner.log").open("wb") as log:
        before = set(client.scheduler_info()["workers"])
        process = subprocess.Popen(
            [OTHER, "-c", program, fleet.address, *flags],
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": root},
        )
        try:
            [address] = until(lambda: set(client.scheduler_info()["workers"]) - before)
            yield
            # Only a builtin: it could not run a function of this Python.
            assert client.run(eval, "'alive'", workers=[address]) == {address: "alive"}
            assert process.poll() is None
        finally:
            kill(process)


def gated(config: dict[str, Any]) -> None:
    place = Path(config["place"])
    note(place, str(os.getpid()))
    wait_for_file(place / "go")
    tune.report({"step": 1})


def tuner(place: Path, fleet: Fleet) -> tune.Tuner:
    return tune.Tuner(
        gated,
        param_space={"place": str(place), "x": tune.grid_search([1, 2, 3])},
        run_config=run_config(place),
        client=fleet.address,
    )


@pytest.fixture
def version() -> str:
    """The other Python's minor version."""
    program = "import sys; print('{}.{}'.format(*sys.version_info))"
    return subprocess.check_output([OTHER, "-c", program], text=True).strip()


def test_a_worker_with_another_python_is_refused_with_both_versions(
    fleet: Fleet, tmp_path: Path, version: str
) -> None:
    fleet.keep(1)
    with foreigner(fleet, tmp_path):
        with pytest.raises(PreflightError, match=r"the workers' Python must be .* as in this process") as e:
            tuner(tmp_path, fleet).fit()
        assert f"got {version} on tcp://" in str(e.value)
        assert notes(tmp_path) == []


def test_a_worker_with_another_python_that_joins_late_gets_no_trial_and_takes_no_harm(
    fleet: Fleet, tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.keep(1)
    [native] = [worker.pid for worker in fleet.workers]
    with caplog.at_level(logging.WARNING, logger="dasktune"), fitting(tuner(tmp_path, fleet)) as future:
        until(lambda: notes(tmp_path))
        with foreigner(fleet, tmp_path):
            until(lambda: f"got {version} on tcp://" in caplog.text)
            (tmp_path / "go").touch()
            assert statuses(future.result(timeout=90)) == {"TERMINATED"}
    assert set(notes(tmp_path)) == {str(native)}
    assert not journal(tmp_path, event="TrialLost")
