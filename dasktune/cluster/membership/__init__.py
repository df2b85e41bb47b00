"""The workers of a cluster: their list, heartbeats, pings, and the plugins that drivers left there.

The resources of workers are in ``dasktune.cluster.resources``.
"""
