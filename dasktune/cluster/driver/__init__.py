"""The driver's side of a running experiment: dispatcher, links to workers, actors, reservations.

The worker's side lives in ``dasktune.cluster.worker``.
"""
