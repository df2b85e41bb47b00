"""Resources of workers: declared to Dask, leased for trials, requested from adaptive clusters.

Which trial gets which is decided in ``dasktune.placement``.
"""
