from __future__ import annotations

from dasktune.results.journal_trials import retention_of
from dasktune.storage.experiment.tuner_json import TunerFile, entries_of
from dasktune.storage.fs.storage import Storage
from dasktune.trial.retention import Retention


def test_the_rule_that_keeps_checkpoints_is_read_as_it_was_written():
    storage = Storage("memory://rule-of-checkpoints")
    rule = {"num_to_keep": 2, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    given = {f"run_config.checkpoint_config.{name}": value for name, value in rule.items()}
    TunerFile(entries_of(given)).write(storage)
    assert retention_of(storage) == Retention(2, "loss", "min")
