"""Where a trial was placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Claim", "Placement", "Seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """All that one trial holds on one worker.

    Parameters
    ----------
    resources : mapping
        What Dask keeps account of.
    shares : tuple of (float, tuple of str)
        For each seat with GPUs how much of them, and which devices the ledger would take.
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
class Seat:
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
    """What a trial got: a seat for each of its bundles.

    Parameters
    ----------
    number : int
        What the ledger calls it.
    seats : tuple of Seat
        In the order of the request, head first.
    """

    number: int
    seats: tuple[Seat, ...]

    @property
    def address(self) -> str:
        """The worker on which user code runs."""
        return self.seats[0].address

    @property
    def addresses(self) -> tuple[str, ...]:
        """All workers that it needs, each once, that of user code first."""
        return tuple(dict.fromkeys(seat.address for seat in self.seats))

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The GPUs of user code itself; None if it asks for none."""
        return self.seats[0].devices

    def seats_on(self, address: str) -> tuple[Seat, ...]:
        """Return the seats on a worker.

        Parameters
        ----------
        address : str
            The worker's address.
        """
        return tuple(seat for seat in self.seats if seat.address == address)

    def claim_on(self, address: str) -> Claim:
        """Return all that its seats on a worker hold.

        Parameters
        ----------
        address : str
            The worker's address.
        """
        seats = self.seats_on(address)
        total: dict[str, float] = {}
        for seat in seats:
            for kind, amount in seat.declared.items():
                total[kind] = total.get(kind, 0) + amount
        shares = [(seat.resources["GPU"], seat.devices) for seat in seats if seat.devices]
        gpus = next((seat.gpus for seat in seats if seat.devices), ())
        return Claim(resources=total, shares=tuple(shares), gpus=gpus)
