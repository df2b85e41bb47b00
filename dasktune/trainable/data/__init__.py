"""Data for trials: shared objects, remote objects, and the payload of a child process.

``dasktune.cluster.data`` sends the data to workers.
"""
