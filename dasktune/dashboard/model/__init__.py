"""The projection of a journal: the data of all figures and tables.

Nothing here draws; figures live in ``dasktune.dashboard.figures``.
"""
