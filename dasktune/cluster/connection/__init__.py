"""Connections to a cluster: clients, event loops, calls that run on workers, the context of a task.

The list of workers is in ``dasktune.cluster.membership``.
"""
