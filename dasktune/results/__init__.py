"""Results of trials, read from the journal, tables of results, and the filter for trials.

The classes that users hold, ``ResultGrid`` and ``ExperimentAnalysis``, are in ``dasktune.tuner``.
"""

from dasktune.trial.result_keys import DONE, SHOULD_CHECKPOINT, TIME_TOTAL_S, TRAINING_ITERATION

__all__ = ["DONE", "SHOULD_CHECKPOINT", "TIME_TOTAL_S", "TRAINING_ITERATION"]
