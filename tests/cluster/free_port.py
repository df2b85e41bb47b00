"""A port that stays free while no process listens on it."""

from __future__ import annotations

import functools
import os
import socket
from itertools import count

#: Ports below those that the system gives to connections, and to servers that ask for any port:
#: 12,000 to 31,999, 200 for each process of the tests, whichever run of them it belongs to.
_FIRST, _EACH, _PROCESSES = 12_000, 200, 100

_numbers = count(os.getpid() % (_EACH - 1))


def free_port() -> int:
    """Return a port on which no process listens.

    The system gives it to no other process, and no other process of the tests asks for it. So a
    server that is killed can be started on it again. Each call returns another one.
    """
    first = _own_ports().getsockname()[1] + 1
    for number in _numbers:
        port = int(first + number % (_EACH - 1))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError


@functools.cache
def _own_ports() -> socket.socket:
    """Return a socket that holds the first of this process's 200 ports as long as it lives."""
    preferred = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for number in range(preferred, preferred + _PROCESSES):
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", _FIRST + _EACH * (number % _PROCESSES)))
        except OSError:
            guard.close()
            continue
        return guard
    raise AssertionError(f"all {_PROCESSES} ranges of ports are taken by other processes of tests")
