"""Allocates the GPUs and the memory of a worker to leases, in the worker's own process.

The ledger of a driver does not know which GPUs another driver uses. Dask limits only how many GPUs
are in use on a worker, and does not count memory. So the worker records which lease has which GPU,
and how much memory. Only the worker's event loop uses the records, so no allocation is interrupted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from dasktune.placement import Claim
from dasktune.placement.devices import allocate_shares

#: The GPUs of each lease, by the worker's address: one process may have several workers.
_HELD: Final[defaultdict[str, dict[str, list[tuple[float, tuple[int, ...]]]]]] = defaultdict(dict)

#: The bytes of memory of each lease, in the same way.
_MEMORY: Final[defaultdict[str, dict[str, float]]] = defaultdict(dict)


def allocate_memory(address: str, key: str, amount: float, limit: float) -> bool:
    """Allocate memory for a lease, and return whether there was enough.

    Parameters
    ----------
    address : str
        The worker's address.
    key : str
        The key of the lease.
    amount : float
        Bytes; nothing is recorded for 0.
    limit : float
        The worker's limit in bytes; 0 for no limit.

    Examples
    --------
    >>> allocate_memory("a", "first", 6, 8), allocate_memory("a", "second", 6, 8)
    (True, False)
    >>> free_memory("a", "first")
    >>> allocate_memory("a", "second", 6, 8)
    True
    """
    if amount:
        if limit and sum(_MEMORY[address].values()) + amount > limit:
            return False
        _MEMORY[address][key] = amount
    return True


def free_memory(address: str, key: str) -> None:
    """Free the memory of a lease; does nothing if it has none."""
    _MEMORY[address].pop(key, None)
    if not _MEMORY[address]:
        del _MEMORY[address]


def allocate_gpus(address: str, key: str, claim: Claim) -> list[tuple[str, ...]] | None:
    """Allocate GPUs for a lease; must be called on the worker's event loop.

    Parameters
    ----------
    address : str
        The worker's address.
    key : str
        The key of the lease.
    claim : Claim
        The requested GPUs.

    Returns
    -------
    list of tuple of str, or None
        The devices of each share; None if no single GPU has room for a share.
    """
    held = _HELD[address]
    taken = [share for shares in held.values() for share in shares]
    given = allocate_shares(claim.gpus, taken, claim.shares)
    if given is None:
        return None
    held[key] = [(amount, gpus) for (amount, _), gpus in zip(claim.shares, given, strict=True)]
    return [tuple(claim.gpus[gpu] for gpu in gpus) for gpus in given]


def free_gpus(address: str, key: str) -> None:
    """Free the GPUs of a lease; does nothing if it has none."""
    _HELD[address].pop(key, None)
    if not _HELD[address]:
        del _HELD[address]
