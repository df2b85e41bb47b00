"""Leader election: only one driver at a time leads an experiment.

Leases of Dask resources are in ``dasktune.cluster.resources``.
"""
