"""The metrics as Prometheus's text, and their table in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from dasktune.control.exposition import METRICS, ExpositionCache, exposition
from dasktune.runner.measurement import DECISIONS, Durations, RunMeasurement
from dasktune.trial.status import PublicStatus
from dasktune.version import __version__

OPERATIONS = Path(__file__).parents[3] / "docs/operations.md"


def durations(*seconds: float) -> Durations:
    found = Durations()
    for one in seconds:
        found.add(one)
    return found


def measurement(total_trials: int | None = 7) -> RunMeasurement:
    return RunMeasurement(
        trials={status: number for number, status in enumerate(PublicStatus)},
        total_trials=total_trials,
        results=30_000_000,
        saves=4,
        failures=1,
        losses=2,
        stopped_early=3,
        decisions=dict.fromkeys(DECISIONS.values(), 5),
        journal_records=12,
        journal_queue=6,
        saving=durations(0.01, 0.02, 2.0, 1000.0),
        on_hold=True,
        loop_lag=0.25,
        seconds=0.001,
    )


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


#: Of the durations above: a limit belongs to its class, and each class has those before it.
BUCKETS = {
    "0.01": 1,
    **dict.fromkeys(("0.03", "0.1", "0.3", "1"), 2),
    **dict.fromkeys(("3", "10", "30", "100", "300"), 3),
    "+Inf": 4,
}


def test_each_number_has_its_metric():
    shown = values(exposition(measurement()))
    trials = {f'dasktune_trials{{status="{s.value}"}}': n for n, s in enumerate(PublicStatus)}
    decisions = {f'dasktune_decisions_total{{decision="{name}"}}': 5.0 for name in DECISIONS.values()}
    assert shown == {
        **trials,
        **decisions,
        "dasktune_expected_trials": 7.0,
        "dasktune_results": 30_000_000.0,
        "dasktune_stopped_early_trials": 3.0,
        "dasktune_checkpoints_total": 4.0,
        "dasktune_failures_total": 1.0,
        "dasktune_losses_total": 2.0,
        "dasktune_journal_records_total": 12.0,
        "dasktune_journal_queue_records": 6.0,
        **{f'dasktune_checkpoint_write_seconds_bucket{{le="{le}"}}': n for le, n in BUCKETS.items()},
        "dasktune_checkpoint_write_seconds_sum": 1002.03,
        "dasktune_checkpoint_write_seconds_count": 4.0,
        "dasktune_hold": 1.0,
        "dasktune_loop_lag_seconds": 0.25,
        f'dasktune_build_info{{version="{__version__}"}}': 1.0,
    }


def test_a_number_of_trials_that_is_not_known_is_left_out():
    assert "dasktune_expected_trials" not in values(exposition(measurement(total_trials=None)))


def test_each_metric_has_a_type_and_a_help_before_its_samples():
    text = exposition(measurement())
    for metric in METRICS:
        head = f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n{metric.name}"
        assert text.count(f"# TYPE {metric.name} ") == 1
        assert head in text
    assert text.endswith("\n")


def test_the_table_of_metrics_in_the_documentation_is_that_of_the_code():
    page = OPERATIONS.read_text(encoding="utf-8")
    table = page.partition("## Metrics of a driver")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w*)(?:, by `(\w+)`)? \| (.*) \|$", table, re.MULTILINE)
    assert rows == [(metric.name, metric.kind, metric.label, metric.help) for metric in METRICS]


def test_an_answer_is_given_again_for_longer_if_it_took_the_driver_longer():
    now = [100.0]
    cache = ExpositionCache(timer=lambda: now[0])
    assert cache.text is None
    cache.store("quick", seconds=0.0001)
    now[0] += 0.49
    assert cache.text == "quick"
    now[0] += 0.02
    assert cache.text is None
    cache.store("slow", seconds=0.05)
    now[0] += 9.9
    assert cache.text == "slow"
    now[0] += 0.2
    assert cache.text is None
