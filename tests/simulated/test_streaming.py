"""Letting results stream changes the traffic and no decision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming_kit import streaming

from dasktune.config import RunConfig, TuneConfig
from dasktune.schedulers import ASHAScheduler, FIFOScheduler
from dasktune.space import uniform
from dasktune.testing import MemoryStore, simulate


def curve(config, checkpoint):
    for step in range(checkpoint or 0, 27):
        loss = config["floor"] + config["x"] / (step + 1)
        # Steps of different length, so that trials overtake each other between milestones.
        yield {"loss": loss, "acc": 1 - loss}, 1 + config["x"], step + 1


def forgetful_curve(config, checkpoint):
    yield from (step[:2] for step in curve(config, None))


def run(*, streams: bool, scheduler: Any, **options: Any) -> Any:
    store = MemoryStore()
    with streaming(streams):
        results = simulate(
            options.pop("trainable", curve),
            param_space={"x": uniform(0, 1), "floor": uniform(0, 0.2)},
            tune_config=TuneConfig(
                metric="loss",
                mode="min",
                num_samples=16,
                scheduler=scheduler,
                seed=options.pop("seed", 0),
            ),
            run_config=RunConfig(stop=options.pop("stop", None)),
            store=store,
            **options,
        )
    return results, [json.loads(line) for line in store.journal.splitlines()]


def outcome(results: Any) -> list[Any]:
    return [
        (result.trial_id, result.status, result.reason, [row["loss"] for row in result.history])
        for result in results
    ]


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 6),
    grace=st.integers(1, 4),
    factor=st.sampled_from([2, 3, 4]),
    brackets=st.integers(1, 2),
)
@settings(max_examples=25)
def test_asha_decides_the_same_with_streaming_and_without(seed, slots, grace, factor, brackets):
    streamed, waited = (
        run(
            streams=streams,
            scheduler=ASHAScheduler(max_t=27, grace_period=grace, reduction_factor=factor, brackets=brackets),
            seed=seed,
            slots=slots,
        )[0]
        for streams in (True, False)
    )
    assert outcome(streamed) == outcome(waited)


def test_a_criterion_stops_exactly_where_it_is_met():
    stop = {"acc": 0.7, "training_iteration": 20}
    outcomes = [outcome(run(streams=s, scheduler=FIFOScheduler(), stop=stop)[0]) for s in (True, False)]
    assert outcomes[0] == outcomes[1]
    assert all(losses[-1] <= 0.3 or len(losses) == 20 for _, _, _, losses in outcomes[0])
    assert all(loss > 0.3 for _, _, _, losses in outcomes[0] for loss in losses[:-1])


def test_a_trial_waits_at_milestones_only():
    asha = ASHAScheduler(max_t=27, grace_period=3, reduction_factor=3)
    results, journal = run(streams=True, scheduler=asha)
    reports = [record for record in journal if record["event"] == "ResultReported"]
    waited = {r["metrics"]["training_iteration"] for r in reports if r["awaits"]}
    assert waited == {3, 9, 27}
    _, journal = run(streams=True, scheduler=FIFOScheduler())
    assert not any(r["awaits"] for r in journal if r["event"] == "ResultReported")
    assert len(results) == 16


def test_a_lost_trial_does_not_wait_again_at_the_rungs_that_it_has_passed():
    asha = ASHAScheduler(max_t=27, grace_period=3, reduction_factor=3, stop_last_trials=False)
    # Without checkpoints, the lost trial reaches its rungs a second time.
    lose = {10.0: 0}
    _, journal = run(trainable=forgetful_curve, streams=True, scheduler=asha, slots=2, lose=lose)
    (lost,) = {record["trial_id"] for record in journal if record["event"] == "TrialLost"}
    reports = [r for r in journal if r["event"] == "ResultReported" and r["trial_id"] == lost]
    assert [r["awaits"] for r in reports if r["metrics"]["training_iteration"] == 3] == [True, False]
    waited = [r["metrics"]["training_iteration"] for r in reports if r["awaits"]]
    assert waited == [3, 9, 27]
