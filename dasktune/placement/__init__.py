"""Who has how much, who holds it, and where a trial fits: plain bookkeeping without a cluster."""

from dasktune.placement.ledger import Ledger
from dasktune.placement.seats import Claim, Placement, Seat
from dasktune.placement.worker import WorkerCapacity

__all__ = ["Claim", "Ledger", "Placement", "Seat", "WorkerCapacity"]
