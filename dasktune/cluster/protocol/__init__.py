"""What crosses the wire between driver and workers: messages, payload, pickling.

Sending and receiving live in ``dasktune.cluster.driver`` and ``dasktune.cluster.worker``.
"""
