"""Trials as values: their status, their events and actions, their resources and checkpoints.

Nothing here decides or waits: `dasktune.experiment` changes trials, the executors run them.
"""
