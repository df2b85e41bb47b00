"""Who has how much, who holds it, and where a trial fits: plain bookkeeping without a cluster."""

from dasktune.placement.ledger import Ledger
from dasktune.placement.placement import Claim, PlacedBundle, Placement
from dasktune.placement.worker import WorkerCapacity

__all__ = ["Claim", "Ledger", "Placement", "PlacedBundle", "WorkerCapacity"]
