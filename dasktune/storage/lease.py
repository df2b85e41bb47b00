"""What a driver says of itself in a file, and what can be learnt from such a file of others."""

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
from dasktune.storage.location import Storage
from dasktune.storage.strict_json import as_count, parse

__all__ = [
    "DIRECTORY",
    "LAST_EPOCH",
    "LONGEST_TTL",
    "Lease",
    "epoch_of",
    "lease_name",
    "lock_name",
    "machine_id",
    "newest_epoch",
]

#: Directory of the leases, below the experiment's.
DIRECTORY: Final = "driver"
#: Version of their format.
FORMAT: Final = 1
#: Seconds that a lease may last: a dead driver, or a forged lease, holds no longer.
LONGEST_TTL: Final = 3600.0
#: The largest number of a lease.
LAST_EPOCH: Final = 999_999_999

#: So that nobody takes another file for a lease.
_KIND: Final = "dasktune driver"
_FILE: Final = re.compile(r"([0-9]{6}|[1-9][0-9]{6,8})\.(json|lock)")
_OWNER: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a driver says of itself.

    Examples
    --------
    >>> lease = Lease(owner="0" * 32, host="node7", pid=123, ttl_s=30.0)
    >>> Lease.decode(lease.encode()) == lease
    True
    """

    #: Unique to each :class:`~dasktune.storage.driver_lock.DriverLock`.
    owner: str
    #: Name of its machine and number of its process, for people.
    host: str
    pid: int
    #: Seconds that it may pass unchanged.
    ttl_s: float
    #: Which clock `renewed` is of: one that all processes of a machine share.
    machine: str = ""
    #: When it was last written, in seconds of that clock.
    renewed: float = 0.0
    #: Whether the driver also holds a lock of the operating system.
    flock: bool = False
    #: Whether the driver has come to its end.
    released: bool = False
    #: How often it was written again.
    renewals: int = 0
    #: Until when it counts by the clock of the driver's machine; for people, never compared.
    expires: str = ""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps({"kind": _KIND, "format": FORMAT, **asdict(self)}).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Lease | None:
        """Make it from what :meth:`encode` gave; None if it is anything else."""
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


def _is_sound(lease: Lease) -> bool:
    """Whether its fields are what they should be; anyone may have written them."""
    values: dict[str, Any] = asdict(lease)
    texts = [values[name] for name in ("owner", "host", "machine", "expires")]
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
    """Return the path of what the operating system locks, on a disk.

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
    """Return the number of the lease that a file of this name belongs to, 0 if to none.

    Examples
    --------
    >>> epoch_of("000003.lock"), epoch_of("notes.txt")
    (3, 0)
    """
    match = _FILE.fullmatch(name)
    return 0 if match is None else int(match[1])


@cache
def machine_id() -> str:
    """Return what all processes have in common that share a clock and locks."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # A container may have a clock of its own.
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        # No Linux. After a boot, when the clock begins anew, a lease may then count once too long.
        return f"{platform.node()}/{uuid.getnode():x}"
