"""The messages and objects that the driver and the workers exchange, and how they are pickled.

``dasktune.cluster.driver`` and ``dasktune.cluster.worker`` send and receive them.
"""
