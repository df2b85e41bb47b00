"""Data on the cluster: broadcast objects, partitions, whole collections, checkpoints in memory.

``dasktune.trainable.data`` opens them in a trial.
"""
