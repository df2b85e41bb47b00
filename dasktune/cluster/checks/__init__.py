"""Checks of a cluster: before an experiment, when a worker joins, and for ``dasktune doctor``.

Checks of settings live in ``dasktune.config``.
"""
