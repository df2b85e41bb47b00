"""An SSH server on this machine, with keys and settings of its own."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from cluster_kit import until
from free_port import free_port
from slurm_kit import program

#: Where `sshd` of root needs an empty directory; the service makes it where there is systemd.
PRIVILEGE_SEPARATION = Path("/run/sshd")

CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {directory}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
SetEnv {environment}
"""


class SshServer:
    """The server, and the key that opens it; nothing is read from or written to ``~/.ssh``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True, capture_output=True)
        # Not the environment of the test: a login starts with an empty one.
        names = ["PYTHONPATH", *(name for name in os.environ if name.startswith("DASKTUNE_TEST"))]
        given = [f'"{name}={os.environ[name]}"' for name in names if name in os.environ]
        (directory / "sshd_config").write_text(
            CONFIGURATION.format(
                port=self.port, directory=directory, environment=" ".join(given or ['"LANG=C"'])
            )
        )
        self._made = os.geteuid() == 0 and not PRIVILEGE_SEPARATION.exists()
        if self._made:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755)
        path = program("sshd")
        assert path is not None
        log = directory / "sshd.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [path, "-D", "-e", "-f", str(directory / "sshd_config")], stdout=file, stderr=file
            )
        try:
            until(lambda: self._process.poll() is not None or "listening" in log.read_text())
            assert self._process.poll() is None, log.read_text()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def cluster(self, workers: int) -> Iterator[Any]:
        """Return a cluster whose scheduler and workers are started by SSH."""
        from distributed import SSHCluster

        options = {
            "port": self.port,
            "username": getpass.getuser(),
            "client_keys": [str(self.directory / "user_key")],
            "known_hosts": None,
            "config": [],
            "agent_path": None,
        }
        with (
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
            SSHCluster(
                ["127.0.0.1"] * (workers + 1),
                connect_options=options,
                worker_options={"nthreads": 1, "memory_limit": 0},
                scheduler_options={"port": 0, "dashboard_address": ":0"},
                remote_python=sys.executable,
            ) as cluster,
        ):
            yield cluster

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()
        if self._made:
            PRIVILEGE_SEPARATION.rmdir()
