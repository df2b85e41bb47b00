"""Which workers exist and which of them answer: list, heartbeats, pings, stale plugins.

The resources of workers are in ``dasktune.cluster.resources``.
"""
