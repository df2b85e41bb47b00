"""Uploads the checkpoints of a trial from its worker, directly or through the driver.

``dasktune.storage`` writes them.
"""
