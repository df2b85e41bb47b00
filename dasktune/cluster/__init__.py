"""Trials on a Dask cluster: the only package that imports dask and distributed."""
