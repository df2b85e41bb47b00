"""The experiment's store on the driver, and its files other than journal and checkpoints.

The journal is in ``dasktune.storage.journal``.
"""
