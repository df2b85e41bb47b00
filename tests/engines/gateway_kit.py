"""A Dask Gateway on this machine, whose clusters are processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster_kit import until
from free_port import free_port

CONFIGURATION = """
import sys
c.DaskGateway.address = "127.0.0.1:{api}"
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.Proxy.address = "127.0.0.1:{http}"
c.Proxy.tcp_address = "127.0.0.1:{tcp}"
c.UnsafeLocalBackend.clusters_directory = {clusters!r}
c.UnsafeLocalBackend.inherited_environment = {inherited!r}
c.UnsafeLocalBackend.sigint_timeout = 5
c.ClusterConfig.scheduler_cmd = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
c.ClusterConfig.worker_cmd = [sys.executable, "-m", "distributed.cli.dask_worker"]
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "1 G"
"""


class GatewayServer:
    """The server and its proxy, whose program the package of the server contains."""

    def __init__(self, directory: Path) -> None:
        http, tcp = free_port(), free_port()
        self.address, self.proxy_address = f"http://127.0.0.1:{http}", f"gateway://127.0.0.1:{tcp}"
        clusters = directory / "clusters"
        clusters.mkdir()
        names = [name for name in os.environ if name.startswith("DASKTUNE_TEST")]
        configuration = directory / "configuration.py"
        configuration.write_text(
            CONFIGURATION.format(
                api=free_port(),
                http=http,
                tcp=tcp,
                clusters=str(clusters),
                inherited=["PATH", "PYTHONPATH", *names],
            )
        )
        log = directory / "gateway.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dask_gateway_server", "-f", str(configuration)],
                cwd=directory,
                stdout=file,
                stderr=file,
            )

        def answers() -> bool:
            assert self._process.poll() is None, log.read_text()
            try:
                with self.gateway() as gateway:
                    return gateway.list_clusters() == []
            except Exception:  # it has not started
                return False

        try:
            until(answers)
        except BaseException:
            self.close()
            raise

    def gateway(self) -> Any:
        """Return a client of the server."""
        from dask_gateway import BasicAuth, Gateway

        return Gateway(self.address, proxy_address=self.proxy_address, auth=BasicAuth("tester"))

    def close(self) -> None:
        """End the server, which ends its clusters and its proxy."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
