"""The worker's side of a running experiment: plugin, endpoint, actors, assigned trials.

User code itself runs in ``dasktune.trainable`` and ``dasktune.isolation``.
"""
