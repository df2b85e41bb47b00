"""Schedulers that change the resources of running trials.

What a trial requests is in ``dasktune.trial.resources``.
"""
