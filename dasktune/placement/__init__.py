"""Who has how much, who holds it, and where a trial fits: plain bookkeeping without a cluster."""

from dasktune.placement.ledger import Ledger
from dasktune.placement.outlook import Outlook
from dasktune.placement.placement import Claim, PlacedBundle, Placement
from dasktune.placement.worker import NOT_ALLOWED, WorkerCapacity

__all__ = [
    "NOT_ALLOWED",
    "Claim",
    "Ledger",
    "Outlook",
    "PlacedBundle",
    "Placement",
    "WorkerCapacity",
]
