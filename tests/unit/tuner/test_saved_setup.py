"""The configuration that a later driver reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from dasktune.stopper import Stopper
from dasktune.tuner.saved_setup import SavedSetup, setup_of


@dataclass
class AtLevel(Stopper):
    """A user's stopper may be a dataclass, as dasktune's configurations are."""

    level: float

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return bool(result["loss"] < self.level)

    def stop_all(self) -> bool:
        return False


def test_policies_that_are_dataclasses_are_stored_whole():
    kept = CheckpointConfig(num_to_keep=2)
    run = RunConfig(stop=AtLevel(0.5), checkpoint_config=kept, failure_config=FailureConfig(max_failures=3))
    _, restored, _ = SavedSetup(setup_of(TuneConfig(), run, {}), None, None, None).configs()
    assert restored.stop == AtLevel(0.5)
    assert restored.checkpoint_config == kept
    assert restored.failure_config.max_failures == 3
