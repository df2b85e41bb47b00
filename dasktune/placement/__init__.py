"""Placement of trials: the capacity of workers, the resources in use, and where a trial fits.

Pure bookkeeping without a cluster. Dask workers get their resources in ``dasktune.cluster``.
"""

from dasktune.placement.capacity_estimate import CapacityEstimate
from dasktune.placement.cluster_shares import ClusterShares, ExperimentShare, amounts_text
from dasktune.placement.host_layout import host_of
from dasktune.placement.ledger import Ledger
from dasktune.placement.placement import Claim, PlacedBundle, Placement
from dasktune.placement.worker import NOT_ALLOWED, WorkerCapacity

__all__ = [
    "NOT_ALLOWED",
    "CapacityEstimate",
    "Claim",
    "ClusterShares",
    "ExperimentShare",
    "Ledger",
    "PlacedBundle",
    "Placement",
    "WorkerCapacity",
    "amounts_text",
    "host_of",
]
