"""Execution of fits as trials: the engine, the backend, the data, and the stored experiment.

The choice of the candidates lives in ``dasktune.sklearn.searches``.
"""
