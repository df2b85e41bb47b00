"""The identity of a process on this machine, by which another process sees that it has died."""

# A process id alone proves little: the system gives it to another process later, and in another
# container it belongs to another process. So the identity has the namespace of process ids and the
# time at which the process started. The caller makes sure that both processes run on one machine
# since one boot (`machine_id`).

from __future__ import annotations

import os

#: States of a process that has ended, and whose parent has not read its exit status yet.
_ENDED = (b"Z", b"X")


def process_identity(pid: int) -> str:
    """Return the identity of a living process; empty if the system does not tell it.

    Parameters
    ----------
    pid : int
        The process id.

    Examples
    --------
    >>> process_identity(os.getpid()) == process_identity(os.getpid())
    True
    """
    return _look_up(pid)[0]


def _look_up(pid: int) -> tuple[str, bytes]:
    """Return the identity and the state of a process; both are empty if they are unknown."""
    try:
        space = os.readlink("/proc/self/ns/pid")
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return "", b""
    # The second field is the name of the program in parentheses, which may have any characters.
    values = content[content.rfind(b")") + 1 :].split()
    return f"{space}/{values[19].decode('ascii')}", values[0]


def has_died(pid: int, identity: str) -> bool:
    """Whether a process is known to have ended; False if it lives or nothing is known about it.

    Parameters
    ----------
    pid : int
        The process id.
    identity : str
        The result of :func:`process_identity` in that process; it may be forged.

    Examples
    --------
    >>> has_died(os.getpid(), process_identity(os.getpid()))
    False
    """
    ours = process_identity(os.getpid())
    if pid <= 0 or not ours or identity.partition("/")[0] != ours.partition("/")[0]:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # a process of another user has this id, or no process can have it
    now, state = _look_up(pid)
    # Some systems show a user only their own processes: then nothing more is known.
    return now != "" and (now != identity or (state in _ENDED and _threads(pid) <= 1))


def _threads(pid: int) -> int:
    """Return the number of threads; a process whose first thread has ended may have others."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
