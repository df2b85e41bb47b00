"""The page of running experiments in the dashboard of Dask's scheduler.

dasktune's own dashboard lives in ``dasktune.dashboard``.
"""
