"""Trials that run in the calling thread, one step after the other, on a clock that is set.

The clock may stand for virtual time, as in `dasktune.testing`, or follow the measured times of the
steps, as in searches of `dasktune.sklearn` without a cluster.
"""
