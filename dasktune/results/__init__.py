"""Results of trials and tables of them, read from the journal, and the filter language for trials.

``ResultGrid`` and ``ExperimentAnalysis``, which users hold, live in ``dasktune.tuner``.
"""
