"""The number of a trial's equal bundles on each host.

Drivers place trials by it, and the plan of fair shares reserves room by it. It travels by value to
schedulers without dasktune, so it imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


def host_of(address: str) -> str:
    """Return the host part of a worker's address.

    Examples
    --------
    >>> host_of("tls://10.0.0.7:4321"), host_of("tcp://[::1]:8786")
    ('10.0.0.7', '::1')
    """
    return urlsplit(address).hostname or address


def bundles_per_host(
    total: int, strategy: str, per_host: int | None, rooms: Sequence[int]
) -> list[int] | None:
    """Return the number of bundles on each host; None if they do not fit.

    Parameters
    ----------
    total : int
        Number of bundles.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
        Whether the bundles should, or must, share one host or be on different ones.
    per_host : int or None
        The exact number on each host.
    rooms : sequence of int
        How many bundles fit on each host. Of hosts that are equally good the first ones are taken.

    Examples
    --------
    >>> bundles_per_host(4, "PACK", None, [1, 3, 3])
    [0, 2, 2]
    >>> bundles_per_host(4, "PACK", 1, [1, 3, 3]) is None
    True
    """
    if per_host is not None:
        return _equal(total // per_host, per_host, rooms)
    if strategy == "STRICT_PACK":
        return _equal(1, total, rooms)
    if strategy == "STRICT_SPREAD":
        return _equal(total, 1, rooms)
    if sum(rooms) < total:
        return None
    return (_spread if strategy == "SPREAD" else _pack)(total, rooms)


def _equal(number: int, each: int, rooms: Sequence[int]) -> list[int] | None:
    """Take the first `number` hosts that have room for `each` bundles."""
    fitting = [at for at, room in enumerate(rooms) if room >= each][:number]
    if len(fitting) < number:
        return None
    return [each * (at in fitting) for at in range(len(rooms))]


def _pack(total: int, rooms: Sequence[int]) -> list[int]:
    """Take the fewest hosts. The rooms suffice."""
    largest = sorted(range(len(rooms)), key=lambda at: rooms[at], reverse=True)
    number, room = 0, 0
    while room < total:
        room, number = room + rooms[largest[number]], number + 1
    # Many libraries need the same number of ranks on each host.
    equal = None if total % number else _equal(number, total // number, rooms)
    if equal is not None:
        return equal
    counts = [0] * len(rooms)
    for at in largest[: number - 1]:
        counts[at] = rooms[at]
    rest = total - sum(counts)
    # The others stay free for larger trials.
    last = next(at for at, room in enumerate(rooms) if room >= rest and not counts[at])
    counts[last] = rest
    return counts


def _spread(total: int, rooms: Sequence[int]) -> list[int]:
    """Take as many hosts as possible, and as equally as possible. The rooms suffice."""
    counts = [0] * len(rooms)
    while sum(counts) < total:
        for at, room in enumerate(rooms):
            if counts[at] < room and sum(counts) < total:
                counts[at] += 1
    return counts
