"""Checkpoints as directories on any storage: written, committed, fenced, exported, deleted.

``dasktune.experiment`` decides when to save them and which to keep.
"""
