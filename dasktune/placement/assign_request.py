"""Assign the bundles of a request to workers, by worker or by host."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune.placement.bin_packing import WorkerPool, assign_bundles
from dasktune.placement.host_packing import assign_to_hosts
from dasktune.trial.resources import HostPlacement, PlacementGroupFactory


def assign_request(request: PlacementGroupFactory, pools: Iterable[WorkerPool]) -> dict[int, str] | None:
    """Assign the bundles of a request to workers; an empty head is left out if more bundles follow.

    Parameters
    ----------
    request : PlacementGroupFactory
        The resources of a trial.
    pools : iterable of WorkerPool
        The pools of workers.
    """
    if isinstance(request, HostPlacement):
        return assign_to_hosts(request, list(pools))
    bundles = dict(enumerate(request.bundles))
    if not bundles[0] and any(bundles.values()):
        del bundles[0]
    numbers = list(bundles)
    found = assign_bundles(list(bundles.values()), request.strategy, list(pools))
    return None if found is None else {numbers[which]: found[which] for which in found}
