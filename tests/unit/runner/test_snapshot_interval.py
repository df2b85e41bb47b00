from __future__ import annotations

from dasktune.runner.snapshot_interval import SnapshotInterval


def due(pace: SnapshotInterval, until: int, seconds: float) -> list[int]:
    return [now for now in range(until) if pace.is_due(float(now), seconds)]


def test_a_period_is_kept():
    assert due(SnapshotInterval(3.0), 10, 60.0) == [3, 6, 9]


def test_by_default_snapshots_take_at_most_a_twentieth_of_the_time():
    assert due(SnapshotInterval("auto"), 35, 0.0) == [10, 20, 30]
    assert due(SnapshotInterval("auto"), 100, 2.0) == [40, 80]
