"""Allocates the GPUs of a worker to leases, in the worker's own process.

The ledger of a driver does not know which GPUs another driver uses. Dask limits only how many GPUs
are in use on a worker. So the worker records which lease has which GPU. Only the worker's event
loop uses the record, so no allocation is interrupted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from dasktune.placement import Claim
from dasktune.placement.devices import allocate_shares

__all__ = ["allocate_gpus", "free_gpus"]

#: The GPUs of each lease, by the worker's address: one process may have several workers.
_HELD: Final[defaultdict[str, dict[str, list[tuple[float, tuple[int, ...]]]]]] = defaultdict(dict)


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
