"""What show and logs say of one trial and of its ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from projection_kit import action

from dasktune.storage.experiment.tuner_json import TunerFile
from dasktune.storage.fs.storage import Storage

Run = Callable[..., tuple[int, str, str]]

RANKS = [["tcp://10.0.0.1:4000", ["0", "1"]], ["tcp://10.0.0.2:4000", []]]


def suggested(trial_id: str) -> dict[str, Any]:
    about = {"event": "Suggested", "trial_id": trial_id, "config": {"lr": 0.5}, "status": "PENDING"}
    start = action("StartTrial", trial_id)
    return {**about, "time": 100.0, "finished": False, "dirname": trial_id, "actions": [start]}


def started(trial_id: str, **more: Any) -> dict[str, Any]:
    about = {"event": "TrialStarted", "trial_id": trial_id, "incarnation": 1, "status": "RUNNING"}
    return {**about, "time": 100.5, "worker": "tcp://10.0.0.1:4000", **more}


def lost(trial_id: str) -> dict[str, Any]:
    about = {"event": "TrialLost", "trial_id": trial_id, "incarnation": 1, "status": "PENDING"}
    again = action("StartTrial", trial_id, incarnation=2)
    return {**about, "time": 101.0, "reason": "gone", "charged": True, "actions": [again]}


def reported(trial_id: str, iteration: int, incarnation: int = 1, **metrics: Any) -> dict[str, Any]:
    about = {"event": "ResultReported", "trial_id": trial_id, "status": "RUNNING", "time": 101.0}
    about |= {"incarnation": incarnation, "awaits": False}
    return {**about, "metrics": {"training_iteration": iteration, "loss": 1 / iteration, **metrics}}


@pytest.fixture
def place(tmp_path: Path, written: Any) -> str:
    """Return an experiment with a distributed trial, and one of one process."""
    records = [
        suggested("many"),
        started("many", ranks=[["tcp://10.0.0.9:4000", []]]),
        reported("many", 1, slowest_rank=0, rank_wait_s=60.0),
        lost("many"),
        started("many", incarnation=2, ranks=RANKS),
        reported("many", 2, 2, slowest_rank=1, rank_wait_s=0.25),
        reported("many", 3, 2, slowest_rank=1, rank_wait_s=0.5),
        reported("many", 4, 2, slowest_rank=0, rank_wait_s=0.125),
        reported("many", 5, 2, slowest_rank="first", rank_wait_s=1.0),
        suggested("one"),
        started("one"),
        reported("one", 1),
    ]
    url: str = written(tmp_path / "exp", *records)
    for name, text in {
        "stdout": "first\nsecond\nthird\n",
        "stderr": "careful\x1b[31m\n",
        "rank_1_stdout": "of rank 1\n",
    }.items():
        path = tmp_path / "exp" / "trials" / "many" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return url


def keep_output(place: str, value: Any) -> None:
    """Let the experiment have this setting for its output."""
    TunerFile({"run_config.log_to_file": {"value": value}}).write(Storage(place))


def test_show_lists_the_ranks_of_a_trial(place: str, dasktune: Run) -> None:
    code, out, _ = dasktune("show", place, "many")
    assert code == 0
    head, *rows = (line.split() for line in out.partition("Ranks: 2\n")[2].splitlines())
    assert head[:4] == ["rank", "host", "worker", "GPUs"]
    # Of the last start only: an earlier one had other places.
    assert rows[0] == ["0", "10.0.0.1", "tcp://10.0.0.1:4000", "0,", "1", "5", "1", "0.125"]
    assert rows[1] == ["1", "10.0.0.2", "tcp://10.0.0.2:4000", "5", "2", "0.75"]
    assert "loss" in out
    assert "lr" in out


def test_show_of_a_trial_is_also_there_as_json(place: str, dasktune: Run) -> None:
    code, out, _ = dasktune("show", place, "many", "--format", "json")
    facts = json.loads(out)
    assert code == 0
    assert facts["metrics"]["training_iteration"] == 5
    assert [one["times slowest"] for one in facts["ranks"]] == [1, 2]
    assert facts["max_ranks"] is None
    assert json.loads(dasktune("show", place, "one", "--format", "json")[1])["ranks"] == []


def test_a_trial_of_one_process_has_no_ranks(place: str, dasktune: Run) -> None:
    code, out, _ = dasktune("show", place, "one")
    assert (code, "Ranks" in out) == (0, False)
    code, _, err = dasktune("show", place, "none")
    assert code == 2
    assert "TRIAL must be one of many, one, got 'none'" in err


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, "the experiment has no trials yet, got TRIAL 'none'"),
        (5, "TRIAL must be one of 0, 1, 2, 3, 4, got 'none'"),
        (6, "TRIAL must be one of 0, 1, 2, 3, 4, ..., got 'none'"),
    ],
)
def test_the_message_about_an_unknown_trial_names_some(
    tmp_path: Path, written: Any, dasktune: Run, number: int, message: str
) -> None:
    records = [suggested(str(each)) for each in range(number)]
    url = written(tmp_path / "exp", {"event": "TimePassed", "time": 1.0, "trial_id": None}, *records)
    for command in ("show", "logs"):
        code, _, err = dasktune(command, url, "none")
        assert (code, message in err) == (2, True)


def test_logs_shows_both_streams_without_control_characters(place: str, dasktune: Run) -> None:
    keep_output(place, True)
    code, out, _ = dasktune("logs", place, "many")
    assert code == 0
    assert out == "stdout\nfirst\nsecond\nthird\n\nstderr\ncareful?[31m\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--stream", "stdout"], "first\nsecond\nthird\n"),
        (["--stream", "stdout", "--tail", "2"], "second\nthird\n"),
        (["--rank", "1", "--stream", "stdout"], "of rank 1\n"),
        (["--rank", "1", "--stream", "stderr"], "\n"),
    ],
)
def test_logs_shows_one_stream_of_one_rank(
    place: str, dasktune: Run, options: list[str], expected: str
) -> None:
    keep_output(place, True)
    assert dasktune("logs", place, "many", *options) == (0, expected, "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # Both streams in one file are shown once.
        ("stdout", "first\nsecond\nthird\n"),
        (["stderr", "stdout"], "stderr\ncareful?[31m\n\nstdout\nfirst\nsecond\nthird\n"),
    ],
)
def test_logs_knows_the_names_of_the_files(place: str, dasktune: Run, value: Any, expected: str) -> None:
    keep_output(place, value)
    assert dasktune("logs", place, "many")[1] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["many"], "log_to_file must be set"),
        (["one", "--rank", "1"], "--rank must be 0 for a trial of one process, got 1"),
        (["many", "--rank", "2"], "--rank must be from 0 to 1, got 2"),
        (["many", "--rank", "-1"], "--rank must be from 0 to 1, got -1"),
        (["many", "--tail", "0"], "--tail must be at least 1, got 0"),
        (["other"], "TRIAL must be one of many, one"),
    ],
)
def test_logs_says_why_there_is_nothing_to_show(
    place: str, dasktune: Run, arguments: list[str], message: str
) -> None:
    code, _, err = dasktune("logs", place, *arguments)
    assert code == 2
    assert message in err
