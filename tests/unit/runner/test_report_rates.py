from __future__ import annotations

import pytest

from dasktune.runner.report_rates import ReportRates
from dasktune.trial.resources import as_placement_group
from dasktune.trial.rows.trial_history import History, StoredRows
from dasktune.trial.trial import Trial


def trial(name: str, results: int = 0) -> Trial:
    made = Trial(trial_id=name, config={}, resources=as_placement_group({"CPU": 1}))
    report(made, results)
    return made


def report(trial: Trial, results: int) -> None:
    """Let a trial have so many results, of which only the number counts."""
    last = {"training_iteration": results}
    trial.history = History([last], stored=StoredRows(results - 1, History)) if results else History()


def test_a_trial_that_reports_too_fast_is_named_once():
    rates, fast, slow = ReportRates(), trial("fast"), trial("slow")
    trials = {"fast": fast, "slow": slow}
    assert rates.message(0.0, trials, trials) == ""
    report(fast, 20_000)
    report(slow, 900)
    assert rates.message(5.0, trials, trials) == ""
    text = rates.message(10.0, trials, trials)
    assert text.startswith("trial fast reports 2,000 results per second, 20,000 so far. No scheduler")
    assert "if step % 200 == 0: tune.report(...)" in text
    assert "slow" not in text
    report(fast, 90_000)
    assert rates.message(20.0, trials, trials) == ""


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (0, 9_999),  # few results, however fast
        (50_000, 51_000),  # many results at 100 per second, which is not more than that
        (50_000, 20_000),  # a clone that went back
    ],
)
def test_few_results_and_slow_reports_need_no_warning(first: int, then: int):
    rates, one = ReportRates(), trial("a", first)
    rates.message(0.0, {"a": one}, ["a"])
    report(one, then)
    assert rates.message(10.0, {"a": one}, ["a"]) == ""


def test_a_rate_is_known_only_of_trials_that_ran_at_the_last_look():
    rates, one = ReportRates(), trial("a", 50_000)
    assert rates.message(0.0, {"a": one}, []) == ""
    # It has just started, perhaps after a restore.
    assert rates.message(10.0, {"a": one}, ["a"]) == ""
    report(one, 60_000)
    assert rates.message(20.0, {"a": one}, ["a"]) != ""


def test_one_warning_names_few_trials_and_counts_the_others():
    rates, trials = ReportRates(), {f"t{number}": trial(f"t{number}") for number in range(6)}
    rates.message(0.0, trials, trials)
    for number, one in enumerate(trials.values()):
        report(one, 10_000 + number)
    text = rates.message(10.0, trials, trials)
    assert text.startswith(
        "trial t5 reports 1,000 results per second, 10,005 so far. So do t4, t3 and 3 others."
    )
    two = ReportRates()
    pair = {name: trial(name) for name in ("a", "b")}
    two.message(0.0, pair, pair)
    for one in pair.values():
        report(one, 10_000)
    assert "10,000 so far. So do b. No" in two.message(10.0, pair, pair)
