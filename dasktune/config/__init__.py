"""What a user may settle about an experiment, checked before anything starts."""

from dasktune.config.checkpoint_config import CheckpointConfig
from dasktune.config.failure_config import FailureConfig
from dasktune.config.run_config import DEFAULT_STORAGE_PATH, RunConfig
from dasktune.config.tune_config import DEFAULT_METRIC, TuneConfig

__all__ = [
    "DEFAULT_METRIC",
    "DEFAULT_STORAGE_PATH",
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "TuneConfig",
]
