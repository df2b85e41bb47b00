"""Which schedulers look at results between the milestones of a trial."""

from __future__ import annotations

import pytest

from dasktune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    MultiObjectiveASHAScheduler,
    PromotingASHAScheduler,
    ResourceChangingScheduler,
    SuccessiveHalvingScheduler,
)


class Judging(AsyncHyperBandScheduler):
    def on_trial_result(self, trial, result):
        return super().on_trial_result(trial, result)


@pytest.mark.parametrize(
    ("scheduler", "looks"),
    [
        (AsyncHyperBandScheduler(), False),
        (PromotingASHAScheduler(), False),
        (MultiObjectiveASHAScheduler(metrics=["a", "b"], modes=["max", "min"]), False),
        (HyperBandScheduler(), False),
        (SuccessiveHalvingScheduler(), False),
        (ResourceChangingScheduler(AsyncHyperBandScheduler()), False),
        (ResourceChangingScheduler(MedianStoppingRule()), True),
        (MedianStoppingRule(), True),
        # Its means contain the results between milestones.
        (MedianStoppingRule(check_at=[3, 9]), True),
        (FIFOScheduler(), True),
        (Judging(), True),
    ],
)
def test_who_compares_at_rungs_only_says_so(scheduler, looks):
    assert scheduler.looks_between is looks
