"""Where a trial was placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Claim", "Placement", "PlacedBundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """All that one trial holds on one worker.

    Parameters
    ----------
    resources : mapping
        What Dask keeps account of.
    shares : tuple of (float, tuple of str)
        For each bundle with GPUs how much of them, and which devices the ledger would take.
    gpus : tuple of str
        The device behind each GPU of the worker.
    """

    resources: Mapping[str, float]
    shares: tuple[tuple[float, tuple[str, ...]], ...] = ()
    gpus: tuple[str, ...] = ()

    def is_like(self, other: Claim) -> bool:
        """Whether one will do for the other: as much, whichever devices these are."""
        mine, theirs = ([amount for amount, _ in one.shares] for one in (self, other))
        return self.resources == other.resources and mine == theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBundle:
    """What one bundle got.

    Parameters
    ----------
    address : str
        The worker's address.
    resources : mapping
        The bundle.
    declared : mapping
        That part of it which the worker declares, so that its Dask keeps account of it.
    devices : tuple of str or None
        The GPUs, by name; None if the bundle asks for none.
    gpus : tuple of str
        The device behind each GPU of the worker, taken or not.
    """

    address: str
    resources: Mapping[str, float]
    declared: Mapping[str, float]
    devices: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a trial got for each of its bundles.

    Parameters
    ----------
    number : int
        What the ledger calls it.
    bundles : tuple of PlacedBundle
        In the order of the request, head first.
    """

    number: int
    bundles: tuple[PlacedBundle, ...]

    @property
    def address(self) -> str:
        """The worker on which user code runs."""
        return self.bundles[0].address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All workers that it needs, each once, that of user code first."""
        return tuple(dict.fromkeys(bundle.address for bundle in self.bundles))

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The GPUs of user code itself; None if it asks for none."""
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
        """Return all that its bundles on a worker hold.

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
