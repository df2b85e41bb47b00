"""Runs trials on a worker: a function or a class in a thread, its captured output, its errors.

Trials in child processes are in ``dasktune.isolation``.
"""
