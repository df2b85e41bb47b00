"""Results of trials, read from the journal, tables of results, and the filter for trials.

The classes that users hold, ``ResultGrid`` and ``ExperimentAnalysis``, are in ``dasktune.tuner``.
"""
