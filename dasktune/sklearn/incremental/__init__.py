"""The incremental searches of dask-ml, such as Hyperband: ``partial_fit`` on blocks of data.

Searches with cross-validation live in ``dasktune.sklearn.searches``.
"""
