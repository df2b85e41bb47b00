"""Which checkpoints of a trial are kept: the best by score, and always the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dasktune.errors import check
from dasktune.trial.checkpoint_record import CheckpointRecord
from dasktune.trial.metrics import Mode, score


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the best `num_to_keep` checkpoints of a trial plus the newest one.

    Without a score, the newest are the best. A score that is NaN or missing is worse than every
    number; among equals the older one is deleted first.

    Parameters
    ----------
    num_to_keep : int, optional
        How many checkpoints to keep by score, at least 1. The newest is kept on top of them, so
        up to ``num_to_keep + 1`` stay. None keeps all.
    score_attribute : str, optional
        Metric that ranks the checkpoints; nested ones are written with ``/``.
    score_order : {"max", "min"}, default="max"
        Whether larger or smaller values of the metric are better.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.

    Examples
    --------
    >>> def record(index, loss):
    ...     path = f"trials/a/checkpoint_{index:06d}_i01"
    ...     return CheckpointRecord(path=path, index=index, iteration=index, metrics={"loss": loss})
    >>> records = [record(0, 0.5), record(1, 0.2), record(2, 0.9)]
    >>> keep = Retention(num_to_keep=1, score_attribute="loss", score_order="min")
    >>> [expired.index for expired in keep.expired(records)]
    [0]
    """

    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: Mode = "max"

    def __post_init__(self) -> None:
        number, attribute = self.num_to_keep, self.score_attribute
        whole = type(number) is int and number >= 1
        hint = "The newest checkpoint is always kept; None keeps all."
        check(number is None or whole, "num_to_keep", "None or an int of at least 1", number, hint)
        named = attribute is None or (type(attribute) is str and attribute != "")
        check(named, "score_attribute", "None or the name of a metric", attribute)
        order = self.score_order
        check(order in ("max", "min"), "score_order", "'max' or 'min'", order)

    def expired(self, records: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
        """Return the checkpoints of one trial that must be deleted, oldest first.

        Parameters
        ----------
        records : sequence of CheckpointRecord
            All checkpoints of the trial, in any order; their ``index`` gives the age.
        """
        if self.num_to_keep is None:
            return []
        by_age = sorted(records, key=_age)
        kept = {record.path for record in [*self.best(records), *by_age[-1:]]}
        return [record for record in by_age if record.path not in kept]

    def best(self, records: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
        """Return the best of one trial's `records`, best first; at most `num_to_keep`."""
        ranked = sorted(records, key=self._rank, reverse=True)
        return ranked[: self.num_to_keep]

    def _rank(self, record: CheckpointRecord) -> tuple[bool, float, int]:
        attribute = self.score_attribute
        points = None if attribute is None else score(record.metrics, attribute, self.score_order)
        return (points is not None, points or 0.0, record.index)


def _age(record: CheckpointRecord) -> int:
    return record.index
