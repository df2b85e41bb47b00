"""Drivers that run as a task on the cluster, and the calls to them.

``Tuner.submit`` and ``attach`` live in ``dasktune.tuner``.
"""
