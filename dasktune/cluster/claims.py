"""Which GPUs of a worker are in use, kept in the worker's own process.

The ledgers of two drivers do not know of each other's devices. Dask sees to it that together they
take no more GPUs than there are, and this that they take different ones.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from dasktune.placement import Claim
from dasktune.placement.devices import shared_out

__all__ = ["claim_devices", "free_devices"]

#: What each lease holds, by the worker's address: several workers may live in one process.
_HELD: Final[defaultdict[str, dict[str, list[tuple[float, tuple[int, ...]]]]]] = defaultdict(dict)


def claim_devices(address: str, key: str, claim: Claim) -> list[tuple[str, ...]] | None:
    """Take GPUs for a lease; only to be called on the worker's event loop.

    Parameters
    ----------
    address : str
        The worker's address.
    key : str
        Of the lease.
    claim : Claim
        What it asks.

    Returns
    -------
    list of tuple of str, or None
        The devices of each share; None if what is free is in too small pieces.
    """
    held = _HELD[address]
    taken = [share for shares in held.values() for share in shares]
    given = shared_out(claim.gpus, taken, claim.shares)
    if given is None:
        return None
    held[key] = [(amount, gpus) for (amount, _), gpus in zip(claim.shares, given, strict=True)]
    return [tuple(claim.gpus[gpu] for gpu in gpus) for gpus in given]


def free_devices(address: str, key: str) -> None:
    """Give back what a lease has taken; that it has nothing is no error."""
    _HELD[address].pop(key, None)
    if not _HELD[address]:
        del _HELD[address]
