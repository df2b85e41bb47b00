"""Where a trial would find a place, as far as policies can know."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from dasktune.placement.arrange import Pool, plan
from dasktune.placement.room import Room
from dasktune.trial.resources import PlacementGroupFactory

__all__ = ["Outlook"]


class Outlook:
    """What is left on workers when some trials hold what they hold.

    The ledger of the executor knows better: this is for policies, which must come to the same
    answer when a journal is replayed.

    Parameters
    ----------
    workers : mapping
        What each worker has, by address and then by name of the resource.

    Examples
    --------
    >>> outlook = Outlook({"a": {"CPU": 4}, "b": {"CPU": 4}})
    >>> outlook.take("a", {"CPU": 3})
    >>> three = PlacementGroupFactory([{"CPU": 3}])
    >>> outlook.has_room(three), outlook.place(three), outlook.has_room(three)
    (True, True, False)
    """

    def __init__(self, workers: Mapping[str, Mapping[str, float]]) -> None:
        self._rooms = {
            address: Room(tuple(amounts.items()), (0.0,) * ceil(amounts.get("GPU", 0)))
            for address, amounts in workers.items()
        }

    def take(self, address: str, needs: Mapping[str, float]) -> None:
        """Let a worker have so much less; one that has not so much has nothing then.

        Parameters
        ----------
        address : str
            The worker's address; one that is not known is no error.
        needs : mapping
            Amounts by name of the resource.
        """
        room = self._rooms.get(address)
        if room is not None:
            self._rooms[address] = room.take(needs) or Room(())

    def has_room(self, request: PlacementGroupFactory) -> bool:
        """Whether there is a place for a request."""
        return self._plan(request) is not None

    def place(self, request: PlacementGroupFactory) -> bool:
        """Take a place for a request, where it would be put, and return whether there was one."""
        found = self._plan(request) or {}
        for number, address in found.items():
            self.take(address, request.bundles[number])
        return bool(found)

    def _plan(self, request: PlacementGroupFactory) -> dict[int, str] | None:
        pools: dict[Room, Pool] = {}
        for number, (address, room) in enumerate(self._rooms.items()):
            pools.setdefault(room, Pool(room)).members.append((number, address))
        return plan(request, pools.values())
