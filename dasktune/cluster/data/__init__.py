"""Data on the cluster: broadcast objects, partitions, whole collections, checkpoints in memory.

How a trial opens them is in ``dasktune.trainable.data``.
"""
