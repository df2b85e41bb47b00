"""The batch script of the page about deploying, with a shell in the place of SLURM."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_kit import Fleet, kill, notes, until
from distributed import Client
from fault_kit import Bout, addresses
from test_notices import computed, repeated, save_rarely

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/deploying.md"

#: Programs that the script calls. SLURM starts the workers and knows the hosts of the job.
PROGRAMS = {
    "srun": 'exec "$@"',
    "scontrol": f"echo {socket.gethostname()}",
    "dasktune": f'exec {sys.executable} -m dasktune "$@" --timeout 60',
    "dask": f'exec {sys.executable} -m dask "$@" --host 127.0.0.1 --nthreads 1 --no-dashboard',
}


@pytest.mark.slow
def test_the_batch_script_passes_the_signal_of_slurm_on_as_a_notice(
    fleet: Fleet, client: Client, tmp_path: Path
) -> None:
    fleet.keep(0)
    section = PAGE.read_text().partition("## SLURM wall times")[2]
    script = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert script is not None
    assert "#SBATCH --signal=B:USR1@120\n" in script[1]
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script[1])
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "here",
        "PYTHONPATH": str(PAGE.parents[1]),
    }
    command = ["bash", str(tmp_path / "job.sh"), fleet.address]
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
    try:
        [address] = until(lambda: addresses(client))
        bout = Bout(save_rarely, tmp_path, fleet.address, space={"asks": True})
        with bout.fitting() as future:
            until(lambda: len(computed(tmp_path)) >= 71)
            job.send_signal(signal.SIGUSR1)
            until(lambda: bout.losses)
            # The worker lives, and is not used.
            assert addresses(client) == {address}
            assert job.poll() is None
            fleet.add_worker()
            bout.go()
            results = future.result(timeout=90)
        bout.assert_exact(results)
        assert "SLURM wall time" in bout.losses[0]["reason"]
        assert repeated(tmp_path) <= 1
        assert "SLURM wall time, less than 110 s left" in notes(tmp_path)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        kill(job)
        fleet.keep(0)
