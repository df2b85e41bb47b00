"""Resources of workers: declared to Dask, leased for trials, requested from adaptive clusters.

``dasktune.placement`` decides which trial gets which resources.
"""
