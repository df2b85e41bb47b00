"""Integrations with training packages and tracking services, one module for each package.

A module imports its package when it is used. ``reporting`` and ``tracked_run`` have the code that
several integrations share. File loggers live in ``dasktune.logger``.
"""
