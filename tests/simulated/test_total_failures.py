"""An experiment has had enough of failures, whichever trials they are of."""

from __future__ import annotations

from typing import Any

import pytest
from test_restored_experiments import lab

from dasktune.config import FailureConfig, RunConfig, TuneConfig
from dasktune.errors import ConfigError
from dasktune.space import grid_search
from dasktune.storage.journal.json_lines import decode
from dasktune.testing import MemoryStore, simulate


def stumbling(config: dict[str, Any], checkpoint: Any) -> Any:
    """Fail at each second step of the first two trials, and make progress in between."""
    for step in range(checkpoint or 0, 6):
        if config["x"] < 2 and checkpoint != step and step % 2:
            raise ValueError(f"step {step}")
        yield {"loss": float(step)}, 1.0, step + 1


def statuses(limit: int | None, **failure: Any) -> tuple[list[str], list[str]]:
    results = simulate(
        stumbling,
        param_space={"x": grid_search([0, 1, 2])},
        tune_config=TuneConfig(metric="loss", mode="min", seed=1),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=-1, max_total_failures=limit, **failure)
        ),
    )
    return [one.status.value for one in results], [one.reason for one in results]


def test_by_default_there_is_no_limit():
    assert statuses(None)[0] == ["TERMINATED"] * 3


def test_as_many_failures_as_allowed_end_nothing_and_the_next_one_ends_everything():
    # Each of two trials fails at steps 1, 3 and 5.
    assert statuses(6)[0] == ["TERMINATED"] * 3
    found, reasons = statuses(5)
    assert sorted(found) == ["ERROR", "TERMINATED", "TERMINATED"]
    assert found.index("ERROR") == 1
    assert reasons[1] == "ValueError: step 5"
    assert "more often than 5 times" in reasons[2]


def test_none_allowed_is_the_first_failure():
    found, _ = statuses(0)
    assert found[0] == "ERROR"
    assert found.count("TERMINATED") == len(found) - 1


@pytest.mark.parametrize("limit", [-1, 1.5, True, "two"])
def test_a_wrong_limit_is_refused(limit: Any):
    with pytest.raises(ConfigError, match="max_total_failures must be a non-negative int or None"):
        FailureConfig(max_total_failures=limit)


def test_what_was_cut_off_stays_so_under_the_same_limit_and_resumes_under_another():
    def parts(limit: int | None) -> RunConfig:
        failure = FailureConfig(max_failures=-1, max_total_failures=limit)
        return RunConfig(failure_config=failure)

    place = lab(
        "total-failures",
        trainable=stumbling,
        tune_config=TuneConfig(metric="loss", mode="min", seed=1),
        run_config=parts(2),
        param_space={"x": grid_search([0, 1, 2])},
    )
    place.places = {"slots": 1}
    experiment = place.begin()
    assert experiment.is_stopped_by_failure
    assert place.resume().is_stopped_by_failure
    experiment = place.resume(run_config=parts(None))
    ended = [trial.public_status.value for trial in experiment.trials.values()]
    # The one that everything was ended for is tried again only if that is asked for.
    assert sorted(ended) == ["ERROR", "TERMINATED", "TERMINATED"]
    assert sum(trial.last_iteration == 6 for trial in experiment.trials.values()) == 2


def slow_or_bad(config: dict[str, Any]) -> Any:
    """Fail after a short step, or take 1,000 seconds for the second one."""
    yield {"loss": 1.0}, 2.0
    if config["x"] == 0:
        raise ValueError("bad")
    yield {"loss": 0.5}, 1000.0


@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_the_first_failure_ends_the_other_trials_in_the_middle_of_their_steps(fail_fast: Any):
    store = MemoryStore()
    results = simulate(
        slow_or_bad,
        param_space={"x": grid_search([0, 1, 2, 3])},
        run_config=RunConfig(failure_config=FailureConfig(fail_fast=fail_fast)),
        slots=3,
        store=store,
    )
    bad, *others = results
    assert bad.status == "ERROR"
    assert [one.status for one in others] == ["TERMINATED"] * 3
    assert {one.reason for one in others} == {f"trial {bad.trial_id} failed"}
    # Two were in their second steps, and one had not started.
    assert [len(one.history) for one in results] == [1, 1, 1, 0]
    records = [decode(line) for line in store.journal.splitlines()]
    assert max(record["time"] for record in records if "time" in record) == 2.0
    stops = [one for record in records for one in record.get("actions", ()) if one["do"] == "StopTrial"]
    assert [one["at_once"] for one in stops] == [True, True]


def test_a_limit_of_all_failures_lets_the_others_end_their_steps():
    results = simulate(
        slow_or_bad,
        param_space={"x": grid_search([0, 1])},
        run_config=RunConfig(failure_config=FailureConfig(max_total_failures=0)),
        slots=2,
    )
    assert [len(one.history) for one in results] == [1, 2]
