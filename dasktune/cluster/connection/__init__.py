"""Connections to a cluster: clients, event loops, calls that run on workers, the context of a task.

Which workers there are is in ``dasktune.cluster.membership``.
"""
