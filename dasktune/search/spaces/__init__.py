"""Conversions of search spaces for other libraries: parameter trees, flat lists, the unit cube.

The domains themselves are in ``dasktune.space``.
"""
