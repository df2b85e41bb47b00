"""Successive halving: ASHA, HyperBand, BOHB's HyperBand, and multi-objective ASHA.

The computation of rungs and brackets is in ``dasktune.schedulers.rungs``.
"""
