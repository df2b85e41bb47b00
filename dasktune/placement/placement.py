"""The result of a placement: the workers and devices of a trial's bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: The annotations of the Dask task that holds a claim: its memory in bytes, and the numbers of GPUs
#: of its bundles.
MEMORY: Final = "dasktune_memory"
SHARES: Final = "dasktune_gpu_shares"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The resources of one trial on one worker.

    Parameters
    ----------
    resources : mapping
        Amounts of the resources that the worker declares to Dask.
    shares : tuple of (float, tuple of str)
        For each bundle with GPUs: the number of GPUs, perhaps a fraction, and the names of the
        devices that the ledger suggests.
    gpus : tuple of str
        Device names of all GPUs of the worker; empty if the trial requests no GPUs on it.
    memory : float, default=0.0
        Bytes of memory, unless the worker declares memory to Dask.
    """

    resources: Mapping[str, float]
    shares: tuple[tuple[float, tuple[str, ...]], ...] = ()
    gpus: tuple[str, ...] = ()
    memory: float = 0.0

    @property
    def annotations(self) -> dict[str, Any]:
        """What Dask's records do not have of it, for the plugin that shares the cluster."""
        return {MEMORY: self.memory, SHARES: [amount for amount, _ in self.shares]}

    def same_amounts(self, other: Claim) -> bool:
        """Whether two claims have the same amounts. Their devices may differ."""
        mine, theirs = ([amount for amount, _ in one.shares] for one in (self, other))
        return (self.resources, self.memory, mine) == (other.resources, other.memory, theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBundle:
    """The worker and devices of one bundle.

    Parameters
    ----------
    address : str
        The worker's address.
    resources : mapping
        The requested amounts.
    declared : mapping
        The part of `resources` that the worker declares to Dask. Dask's scheduler counts the use of
        these resources.
    devices : tuple of str or None
        Device names of the bundle's GPUs; None if it requests no GPU.
    gpus : tuple of str
        Device names of all GPUs of the worker, used or not.
    """

    address: str
    resources: Mapping[str, float]
    declared: Mapping[str, float]
    devices: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The workers and devices of all bundles of a trial.

    Parameters
    ----------
    number : int
        The placement's unique number in the ledger.
    bundles : tuple of PlacedBundle
        The bundles in the order of the request, head first.
    """

    number: int
    bundles: tuple[PlacedBundle, ...]

    @property
    def address(self) -> str:
        """The address of the worker on which user code runs."""
        return self.bundles[0].address

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all workers of the trial, first the worker on which user code runs."""
        return tuple(dict.fromkeys(bundle.address for bundle in self.bundles))

    @property
    def devices(self) -> tuple[str, ...] | None:
        """Devices of the head bundle, where user code runs; None if it requests no GPU."""
        return self.bundles[0].devices

    def bundles_on(self, address: str) -> tuple[PlacedBundle, ...]:
        """Return the bundles on a worker.

        Parameters
        ----------
        address : str
            The worker's address.
        """
        return tuple(bundle for bundle in self.bundles if bundle.address == address)

    def claim_on(self, address: str) -> Claim:
        """Return the claim of the trial on a worker: the sum of its bundles there.

        Parameters
        ----------
        address : str
            The worker's address.
        """
        bundles = self.bundles_on(address)
        total: dict[str, float] = {}
        for bundle in bundles:
            for kind, amount in bundle.declared.items():
                total[kind] = total.get(kind, 0) + amount
        shares = [(bundle.resources["GPU"], bundle.devices) for bundle in bundles if bundle.devices]
        gpus = next((bundle.gpus for bundle in bundles if bundle.devices), ())
        memory = sum(b.resources.get("memory", 0) for b in bundles if "memory" not in b.declared)
        return Claim(resources=total, shares=tuple(shares), gpus=gpus, memory=memory)
