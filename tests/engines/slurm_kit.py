"""A real SLURM on this machine: its daemons, which a run of the tests starts and ends."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from cluster_kit import until
from free_port import free_port

#: More CPUs than the machine has, so that several jobs run at a time.
CPUS = 6

#: The daemons, and the commands that dask-jobqueue and the tests call.
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo", "squeue", "srun")

# Without cgroups, so that it works in a container: SLURM finds the processes of a job by their
# parents. `config_overrides` gives the node CPUs and memory that the machine may not have.
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SwitchType=switch/none
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=3600
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def program(name: str) -> str | None:
    """Return the path of a program, also of one that only the superuser has on the path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


class Slurm:
    """The daemons, whose files are all below one directory of their own."""

    def __init__(self) -> None:
        # Jobs of all users must reach the socket of munge, so no directory of pytest will do.
        self.directory = Path(tempfile.mkdtemp(prefix="dasktune-slurm-", dir="/tmp"))
        self.directory.chmod(0o755)
        #: The variable by which all commands find this SLURM.
        self.environment = {"SLURM_CONF": str(self.directory / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
        except BaseException as error:
            error.args = (*error.args, self.logs())
            self.close()
            raise

    def _start(self) -> None:
        for name in ("state", "spool"):
            (self.directory / name).mkdir()
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            directory=self.directory,
            controller_port=free_port(),
            node_port=free_port(),
            cpus=CPUS,
        )
        (self.directory / "slurm.conf").write_text(text)
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        files = {
            "--key-file": key,
            "--socket": self.directory / "munge.socket",
            "--pid-file": self.directory / "munged.pid",
            "--seed-file": self.directory / "munge.seed",
            "--log-file": self.directory / "munged.log",
        }
        options = [f"{option}={file}" for option, file in files.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        until(files["--socket"].exists)
        self._daemon("slurmctld", "-D", "-i")
        self._daemon("slurmd", "-D")
        until(lambda: self.command("sinfo", "--noheader", "--format=%T", check=False) == "idle")

    def _daemon(self, name: str, *arguments: str) -> None:
        path = program(name)
        assert path is not None
        with (self.directory / f"{name}.out").open("wb") as log:
            daemon = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environment},
            )
        self._daemons.append(daemon)

    def command(self, *arguments: str, check: bool = True, **options: Any) -> str:
        """Run a command of SLURM, and return what it prints."""
        done = subprocess.run(
            arguments,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )
        assert done.returncode == 0 or not check, (arguments, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, directory: Path, lines: str, *options: str) -> str:
        """Put a job with these lines into the queue, and return its identifier."""
        script = directory / "job.sh"
        script.write_text(f"#!/bin/bash\n{lines}\n")
        where = (f"--chdir={directory}", f"--output={directory}/job.out", "--open-mode=append")
        return self.command("sbatch", "--parsable", *where, *options, str(script))

    def jobs(self, state: str = "all", *, user: str = "", name: str = "") -> list[str]:
        """Return the identifiers of jobs in a state."""
        filters = [f"--states={state}"]
        filters += [f"--user={user}"] if user else []
        filters += [f"--name={name}"] if name else []
        return self.command("squeue", "--noheader", "--format=%i", *filters).split()

    def state_of(self, job: str) -> str:
        """Return the state of a job, such as COMPLETED."""
        return self.command("squeue", "--noheader", "--format=%T", "--states=all", f"--jobs={job}")

    def wait_for(self, job: str) -> str:
        """Wait until a job has ended, and return its last state."""
        ended = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"}
        # SLURM looks at the times of its jobs every 30 s.
        return until(lambda: state if (state := self.state_of(job)) in ended else "", timeout=200)

    @contextmanager
    def workers(self, directory: Path, jobs: int, **options: Any) -> Iterator[Any]:
        """Return a cluster of dask-jobqueue with so many jobs, each a worker with one thread."""
        from dask_jobqueue import SLURMCluster

        # A job that has ended does not come back, so wait only shortly for its worker.
        with (
            dask.config.set({"distributed.deploy.lost-worker-timeout": "2 s"}),
            SLURMCluster(
                cores=1,
                processes=1,
                memory="1GB",
                interface="lo",
                python=sys.executable,
                log_directory=str(directory),
                scheduler_options={"dashboard_address": ":0"},
                **options,
            ) as cluster,
        ):
            # It replaces a job that has ended; `scale` does not.
            cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)
            yield cluster

    def cancel_all(self) -> None:
        """End all jobs, and wait until their processes have ended."""
        unfinished = "pending,running,suspended,completing"
        for job in self.jobs("pending,running,suspended"):
            self.command("scancel", "--full", "--signal=KILL", job, check=False)
            self.command("scancel", job, check=False)
        until(lambda: not self.jobs(unfinished))

    def logs(self) -> str:
        """Return the end of what the daemons have written."""
        files = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-2000:]}" for file in files)

    def close(self) -> None:
        """End the jobs, then the daemons, and delete their files."""
        try:
            if len(self._daemons) == 3 and all(daemon.poll() is None for daemon in self._daemons):
                self.cancel_all()
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                try:
                    daemon.wait(30)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            shutil.rmtree(self.directory, ignore_errors=True)
