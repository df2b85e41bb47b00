"""The result of a placement: the workers and devices of a trial's bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Claim", "PlacedBundle", "Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The resources of one trial on one worker.

    Parameters
    ----------
    resources : mapping
        Amounts of the resources that Dask accounts for.
    shares : tuple of (float, tuple of str)
        For each bundle with GPUs, the amount and the devices that the ledger suggests.
    gpus : tuple of str
        The device of each GPU of the worker.
    """

    resources: Mapping[str, float]
    shares: tuple[tuple[float, tuple[str, ...]], ...] = ()
    gpus: tuple[str, ...] = ()

    def same_amounts(self, other: Claim) -> bool:
        """Whether two claims have the same amounts, regardless of the devices."""
        mine, theirs = ([amount for amount, _ in one.shares] for one in (self, other))
        return self.resources == other.resources and mine == theirs


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
        The part of `resources` that the worker declares to Dask, which accounts for it.
    devices : tuple of str or None
        Names of its GPUs; None if the bundle requests none.
    gpus : tuple of str
        The device of each GPU of the worker, used or not.
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
        Its unique number in the ledger.
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
        """The addresses of all its workers without duplicates, that of user code first."""
        return tuple(dict.fromkeys(bundle.address for bundle in self.bundles))

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The GPUs of the head bundle, in which user code runs; None if it requests none."""
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
        """Return the sum of its bundles on a worker.

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
        return Claim(resources=total, shares=tuple(shares), gpus=gpus)
