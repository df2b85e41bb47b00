"""An experiment that an earlier state of dasktune has stored is read, and gone on with.

`tests/fixtures/climbing` has been written once, by :func:`train` with ASHA and the seed 7; its
driver was killed in the last of four trials. Its files must stay as they are. If they cannot be
read any more, code has moved without a line in the table of migrations, or the format needs a new
number.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

import dasktune as tune
from dasktune.cli import main
from dasktune.dashboard.model.load import load_projection
from dasktune.errors import StorageError
from dasktune.results.journal_repair import diagnose_journal
from dasktune.results.journal_trials import load_trials
from dasktune.storage.fs.storage import Storage

FIXTURE = Path(__file__).parents[1] / "fixtures" / "climbing"
SCORES = [0.3669434712474269, 3.920203417534411, 0.05660103846265485]


def train(config: dict[str, Any]) -> None:
    """Climb by `x`, and save each iteration."""
    checkpoint = tune.get_checkpoint()
    done = checkpoint.to_dict()["iteration"] if checkpoint else 0
    for iteration in range(done + 1, 5):
        saved = tune.Checkpoint.from_dict({"iteration": iteration})
        tune.report({"score": config["x"] * iteration}, checkpoint=saved)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "climbing"))


def test_it_is_listed_and_projected(stored: Path, capsys: Any):
    storage = Storage(str(stored))
    assert diagnose_journal(storage).damages == []
    trials = load_trials(storage)
    assert [len(one.history) for one in trials] == [4, 4, 1, 1]
    assert [one.last_result["score"] for one in trials][:3] == SCORES
    projection = load_projection(storage)
    assert [one.trial_id for one in projection.trials] == [one.trial_id for one in trials]
    assert (projection.total, projection.metrics) == (4, ["score"])
    assert main(["ls", "--format", "json", str(stored.parent)]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["state"], shown["trials"]) == ("climbing", "interrupted", 4)


@pytest.mark.parametrize("without", ["driver", "snapshots"], ids=["with a snapshot", "from the journal"])
def test_it_is_restored(without: str, stored: Path, pair: LocalCluster, caplog: pytest.LogCaptureFixture):
    shutil.rmtree(stored / without, ignore_errors=True)
    results = tune.Tuner.restore(stored, train, client=pair).fit()
    assert [one.metrics["score"] for one in results][:3] == SCORES
    assert results[1].config["layers"] in {(64,), (64, 64)}
    assert results[1].checkpoint.to_dict() == {"iteration": 4}
    assert results.num_terminated == 4
    # The driver warns if it skips a snapshot, an object or a state.
    ours = [one for one in caplog.records if one.name.startswith("dasktune")]
    said = [one.getMessage() for one in ours if one.levelno >= logging.WARNING]
    assert [one for one in said if not one.startswith("the cluster has no workers")] == []


@pytest.mark.parametrize("name", ["journal/000001-000000.jsonl", "tuner.json"])
def test_one_of_another_format_is_refused(name: str, stored: Path):
    file = stored / name
    file.write_text(file.read_text().replace('"format"', '"format":2,"was"', 1))
    with pytest.raises(
        StorageError, match=r"has format 2, and this dasktune reads format 1\. Use the version"
    ):
        tune.Tuner.restore(stored, train)


def test_what_was_added_to_the_configuration_since_has_its_default(stored: Path, pair: LocalCluster):
    file = stored / "tuner.json"
    content = json.loads(file.read_text())
    names = ("tune_config.trial_name_creator", "run_config.failure_config.report_timeout_s")
    for name in names:
        del content["entries"][name]
    file.write_text(json.dumps(content))
    assert tune.Tuner.restore(stored, train, client=pair).fit().num_terminated == 4
