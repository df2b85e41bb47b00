"""The lease file of a leading driver: its name, its content, and the identity of a machine."""

from __future__ import annotations

import json
import os
import platform
import re
import uuid
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Final

from dasktune.errors import StorageError
from dasktune.storage.fs.format import FORMAT
from dasktune.storage.fs.storage import Storage
from dasktune.storage.journal.strict_json import as_count, parse

#: Directory of the leases, below the experiment's.
DIRECTORY: Final = "driver"
#: Longest ttl in seconds: the time for which a dead driver or a forged lease can block others.
LONGEST_TTL: Final = 3600.0
#: Highest number of a lease.
LAST_EPOCH: Final = 999_999_999

#: Distinguishes a lease from any other JSON file.
_KIND: Final = "dasktune driver"
_FILE: Final = re.compile(r"([0-9]{6}|[1-9][0-9]{6,8})\.(json|lock)")
_OWNER: Final = re.compile(r"[0-9a-f]{32}")

#: States of a process that has ended, and whose parent has not read its exit status yet.
_ENDED = (b"Z", b"X")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """The lease of a driver.

    Examples
    --------
    >>> lease = LeaderLease(owner="0" * 32, host="node7", pid=123, ttl_s=30.0)
    >>> LeaderLease.decode(lease.encode()) == lease
    True
    """

    #: Unique to each :class:`~dasktune.storage.leader.leader_lock.LeaderLock`.
    owner: str
    #: The driver's host name and process id, for display.
    host: str
    pid: int
    #: Seconds without a change after which the lease has expired.
    ttl_s: float
    #: Identity of the machine, whose processes share the clock of `renewed`.
    machine: str = ""
    #: Time of the lease's last write in seconds of the machine's monotonic clock.
    renewed: float = 0.0
    #: Whether the driver also holds a lock of the operating system.
    flock: bool = False
    #: Whether the driver has released the lead.
    released: bool = False
    #: Number of renewals.
    renewals: int = 0
    #: Wall clock time on the driver's machine when the lease expires. For display only.
    expires: str = ""
    #: Identity of the driver's process; empty if unknown.
    process: str = ""

    def encode(self) -> bytes:
        """Return the lease as JSON."""
        return json.dumps({"kind": _KIND, "format": FORMAT, **asdict(self)}).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> LeaderLease | None:
        """Return the lease in the content of a file; None if it is anything else."""
        try:
            content = parse(data)
            if content["kind"] != _KIND or content["format"] != FORMAT:
                return None
            lease = cls(**{one.name: content[one.name] for one in fields(cls)})
            as_count(lease.pid)
            as_count(lease.renewals)
            return lease if _is_sound(lease) else None
        except (StorageError, ValueError, KeyError, TypeError):
            return None


def _is_sound(lease: LeaderLease) -> bool:
    """Whether the fields have valid values; any program may have written them."""
    values: dict[str, Any] = asdict(lease)
    texts = [values[name] for name in ("owner", "host", "machine", "expires", "process")]
    numbers = [values[name] for name in ("ttl_s", "renewed")]
    return (
        all(isinstance(one, str) and len(one) < 300 and one.isprintable() for one in texts)
        and _OWNER.fullmatch(lease.owner) is not None
        and all(type(one) in (int, float) and abs(one) < 1e15 for one in numbers)
        and 0 < lease.ttl_s <= LONGEST_TTL
        and type(values["flock"]) is type(values["released"]) is bool
    )


def lease_name(epoch: int) -> str:
    """Return the path of a lease below the experiment.

    Examples
    --------
    >>> lease_name(3)
    'driver/000003.json'
    """
    return f"{DIRECTORY}/{epoch:06d}.json"


def lock_name(epoch: int) -> str:
    """Return the path of the file that the leader locks (``flock``), on a disk.

    Examples
    --------
    >>> lock_name(3)
    'driver/000003.lock'
    """
    return f"{DIRECTORY}/{epoch:06d}.lock"


def newest_epoch(storage: Storage) -> int:
    """Return the number of the newest lease, 0 if there is none.

    Parameters
    ----------
    storage : Storage
        The experiment's directory.
    """
    names = storage.names(DIRECTORY)
    return max((epoch_of(name) for name in names if name.endswith(".json")), default=0)


def epoch_of(name: str) -> int:
    """Return the number in the name of a lease or lock file, 0 for any other name.

    Examples
    --------
    >>> epoch_of("000003.lock"), epoch_of("notes.txt")
    (3, 0)
    """
    match = _FILE.fullmatch(name)
    return 0 if match is None else int(match[1])


@cache
def machine_id() -> str:
    """Return the identity of this machine since its boot: its processes share a clock and locks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # A container may have another clock (time namespace).
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        # Not Linux. A reboot restarts the clock: a lease from before may count as alive too long.
        return f"{platform.node()}/{uuid.getnode():x}"


# A process id alone proves little: the system gives it to another process later, and in another
# container it belongs to another process. So the identity has the namespace of process ids and the
# time at which the process started. The caller makes sure that both processes run on one machine
# since one boot (`machine_id`).


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
