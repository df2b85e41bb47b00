"""Keys of a result that have a meaning for dasktune, under Ray Tune's names."""

from __future__ import annotations

from typing import Final

#: True in a trial's last result.
DONE: Final = "done"

#: True in a result with which a checkpoint is saved.
SHOULD_CHECKPOINT: Final = "should_checkpoint"

#: Number of the result, from 1.
TRAINING_ITERATION: Final = "training_iteration"

#: Seconds for which the trial has trained, in all its runs.
TIME_TOTAL_S: Final = "time_total_s"
