"""Turns the results and checkpoints of a trial into messages, kept until they are acknowledged.

``dasktune.cluster`` sends the messages to the driver.
"""
