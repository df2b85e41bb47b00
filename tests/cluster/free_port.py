"""A port that stays free while no process listens on it."""

from __future__ import annotations

import os
import socket
from itertools import count

#: Ports below those that the system gives to connections, and to servers that ask for any port:
#: 12,000 to 31,999, a thousand for each process of a run of the tests. A run beside another one has
#: its own: `FIRST_PORTS` says after how many thousands they begin.
_FIRST, _EACH, _PROCESSES = 12_000, 1000, 20

_numbers = count(os.getpid() % _EACH)


def free_port() -> int:
    """Return a port on which no process listens.

    The system gives it to no other process, and no other process of this run of the tests asks for
    it. So a server that is killed can be started on it again. Each call returns another one.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    worker += int(os.environ.get("FIRST_PORTS", "0"))
    first = _FIRST + _EACH * (worker % _PROCESSES)
    for number in _numbers:
        port = first + number % _EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError
