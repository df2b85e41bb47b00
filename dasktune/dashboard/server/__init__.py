"""The dashboard's web server: pages of running and finished experiments, controls, access.

The figures on the pages live in ``dasktune.dashboard.figures``.
"""
