"""The address of a worker that has no network."""

from __future__ import annotations

import subprocess
import sys

#: Where no socket can be connected. The address is looked up once in a process.
UNPLUGGED = """
import socket
class Unplugged(socket.socket):
    def connect(self, address):
        raise OSError("network is unreachable")
socket.socket = Unplugged
from dasktune.trainable.reporting.auto_metrics import AutoMetrics
print(AutoMetrics("t1")({}, 0.0)["node_ip"])
"""


def test_a_host_without_network_has_a_local_address():
    shown = subprocess.check_output([sys.executable, "-c", UNPLUGGED], text=True, timeout=60)
    assert shown == "127.0.0.1\n"
